/* Prompt and answer speed of llama.cpp: `requests` sequences in one context, each with a prompt of its own.
 *
 * Prints `prefill_tok_s decode_tok_s peak_rss_bytes`: prompt tokens over the time until the last prompt's first token is
 * chosen, and answer tokens over the time of the steps after, greedy, as `engy-miner bench engine` counts them. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "llama.h"
#include "llama_peer.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)level, (void)text, (void)data;
}

static void add(struct llama_batch *batch, llama_token token, int at, int sequence, int logits) {
    int n = batch->n_tokens++;
    batch->token[n] = token;
    batch->pos[n] = at;
    batch->n_seq_id[n] = 1;
    batch->seq_id[n][0] = sequence;
    batch->logits[n] = logits;
}

/* The most memory that this process ever held: VmHWM. */
static long long peak_rss(void) {
    char line[256];
    long long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %lld kB", &kilobytes) == 1) break;
    if (status) fclose(status);
    return kilobytes * 1024;
}

/* The likeliest next token after the batch's entry `i`. */
static llama_token likeliest(struct llama_context *context, int i, int vocab) {
    const float *logits = llama_get_logits_ith(context, i);
    int best = 0;
    for (int k = 1; k < vocab; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}

int bench(const char *path, int threads, int requests, int prompt, int answer) {
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) return 1;
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = requests * (prompt + answer);
    params.n_seq_max = requests;
    params.n_batch = requests * prompt;
    params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context) return 2;
    struct llama_batch batch = llama_batch_init(requests * prompt, 0, 1);
    for (int warm = 0; warm < 2; warm++) {
        /* The first round is short and only wakes threads and caches. */
        const int length = warm == 0 ? 8 : prompt, steps = warm == 0 ? 4 : answer;
        llama_memory_clear(llama_get_memory(context), 1);
        double started = now();
        batch.n_tokens = 0;
        for (int s = 0; s < requests; s++)
            for (int i = 0; i < length; i++) add(&batch, 100 + (s * 7919 + i * 104729) % (vocab - 200), i, s, i == length - 1);
        if (llama_decode(context, batch)) return 3;
        llama_token *next = malloc(sizeof(llama_token) * requests);
        for (int s = 0; s < requests; s++) next[s] = likeliest(context, (s + 1) * length - 1, vocab);
        double prefilled = now();
        for (int step = 1; step < steps; step++) {
            batch.n_tokens = 0;
            for (int s = 0; s < requests; s++) add(&batch, next[s], length + step - 1, s, 1);
            if (llama_decode(context, batch)) return 4;
            for (int s = 0; s < requests; s++) next[s] = likeliest(context, s, vocab);
        }
        double ended = now();
        free(next);
        if (warm == 1)
            printf("%.2f %.2f %lld\n", requests * prompt / (prefilled - started),
                   requests * (answer - 1) / (ended - prefilled), peak_rss());
    }
    fflush(stdout);
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
