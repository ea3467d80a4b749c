// The entry points of the NVIDIA driver, looked for when the program starts and not when it is linked.
//
// candle links libcuda.so.1 by name, so a program linked against the real library cannot even print its help where there is
// no driver. Linked against these, it starts anywhere: each entry point jumps to the driver's own where there is one, and
// answers "a stand-in for the driver" where there is none, which the program turns into one line for its operator.
//
// drivers.h is a list of DRIVER(name), one for each function that cuda.h declares.
#include <dlfcn.h>

// CUDA_ERROR_STUB_LIBRARY, which the toolkit's own stand-in answers, too.
static int no_driver(void) { return 34; }

#if defined(__x86_64__)
#define JUMP(slot) "jmp *" slot "(%rip)"
#elif defined(__aarch64__)
#define JUMP(slot) "adrp x16, " slot "\n ldr x16, [x16, :lo12:" slot "]\n br x16"
#endif

// A function that jumps on touches neither arguments nor stack, so it need not know the signature.
#define DRIVER(name)                                                                                  \
    __attribute__((used, visibility("hidden"))) void *driver_##name = (void *)no_driver;              \
    __asm__(".text\n.balign 16\n.globl " #name "\n.type " #name ", %function\n" #name ":\n"           \
            JUMP("driver_" #name) "\n.size " #name ", . - " #name "\n");
#include "drivers.h"
#undef DRIVER

static const struct {
    const char *name;
    void **slot;
} entries[] = {
#define DRIVER(name) {#name, &driver_##name},
#include "drivers.h"
};

__attribute__((constructor)) static void find_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return;
    for (unsigned i = 0; i < sizeof entries / sizeof *entries; i++) {
        // One that an older driver lacks keeps its answer: the program asks for few, and says which failed.
        void *entry = dlsym(driver, entries[i].name);
        if (entry) *entries[i].slot = entry;
    }
}
