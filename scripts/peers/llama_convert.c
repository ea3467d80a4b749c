/* Writes a model file anew in another format, through llama.cpp's own quantiser; a quantised file is dequantised first. */
#include "llama.h"
#include "llama_peer.h"

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)level, (void)text, (void)data;
}

/* `format` is a number of llama.cpp's `enum llama_ftype`. */
int convert(const char *from, const char *to, int format, int threads) {
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.nthread = threads;
    params.ftype = format;
    params.allow_requantize = true;
    return llama_model_quantize(from, to, &params);
}
