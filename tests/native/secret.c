/* Noise from keys that Valgrind holds to be undefined, so that it reports every branch and every address that depends on them. With
 * an argument there is one: a branch on a value. tests/native/test_native_processors.py runs it. */
#include <stdio.h>
#include "noise.h"

#define COUNT 3000
#define TERMS 5

static uint32_t out[COUNT];

int main(int arguments, char **names)
{
    const float scales[TERMS] = {1000, -4096, 4096, 500, -500};
    const signed char signs[TERMS] = {1, -1, 1, 1, -1};
    const Data none = {NULL, 0, 1.0};
    unsigned char *keys = malloc(32 * TERMS);
    (void)names;
    for (int i = 0; PATHS[i].name; i++) {
        if (!supports(PATHS[i].name)) continue;
        accumulated(PATHS[i].name, out, COUNT, 77, keys, scales, TERMS, none);
        drawn(PATHS[i].name, out, COUNT, 77, keys, signs, TERMS, 3);
        printf("%s\n", PATHS[i].name);
    }
    if (arguments > 1 && out[5] == 12345) printf("seldom\n");
    free(keys);
    return 0;
}
