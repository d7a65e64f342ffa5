/* The only program of the image that has no shell: it does a little of what the tests need, by its first argument. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "exit") == 0) return argc > 2 ? atoi(argv[2]) : 0;
    if (strcmp(what, "echo") == 0) {
        for (int i = 2; i < argc; i++) printf("%s%s", argv[i], i + 1 < argc ? " " : "\n");
        return 0;
    }
    if (strcmp(what, "cat") == 0) {
        char block[4096];
        ssize_t n;
        while ((n = read(0, block, sizeof block)) > 0)
            if (write(1, block, (size_t)n) != n) return 1;
        return n < 0;
    }
    if (strcmp(what, "pwd") == 0) {
        char path[4096];
        if (!getcwd(path, sizeof path)) return 1;
        puts(path);
        return 0;
    }
    if (strcmp(what, "sleep") == 0) {
        sleep(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
        return 0;
    }
    fprintf(stderr, "unknown\n");
    return 64;
}
