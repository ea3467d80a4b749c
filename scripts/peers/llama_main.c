/* A program around llama_bench.c and llama_convert.c, so that its memory is llama.cpp's and nobody else's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama_peer.h"

int main(int count, char **args) {
    if (count == 7 && !strcmp(args[1], "bench"))
        return bench(args[2], atoi(args[3]), atoi(args[4]), atoi(args[5]), atoi(args[6]));
    if (count == 6 && !strcmp(args[1], "convert")) return convert(args[2], args[3], atoi(args[4]), atoi(args[5]));
    fputs("usage: llama-peer bench MODEL THREADS REQUESTS PROMPT ANSWER | convert FROM TO FORMAT THREADS\n", stderr);
    return 64;
}
