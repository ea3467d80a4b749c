/* What the peer program of llama.cpp can do; see llama_bench.c and llama_convert.c. */
int bench(const char *path, int threads, int requests, int prompt, int answer);
int convert(const char *from, const char *to, int format, int threads);
