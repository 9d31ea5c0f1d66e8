/* What noise leaves on the stack: prints, for each path, how many round keys lie below the caller once it is made, and of how many
 * bytes that were marked before, how many are other ones and not 0. tests/native/test_native_processors.py compiles it. */
#include <stdio.h>
#include "noise.h"

#define DEEP (64 << 10)
#define COUNT 5000
#define MARK 0xee

static unsigned char keys[32 * 6], seen[DEEP];
static uint32_t out[COUNT];
static float values[COUNT];
static Term terms[6];

/* fill the stack below the caller with MARK, or see what is there */
__attribute__((noinline)) static void below(int marks)
{
    unsigned char frame[DEEP];
    volatile unsigned char *at = frame;
    __asm__ volatile("" : "=m"(frame));  /* which, for all that the compiler knows, writes it */
    for (size_t i = 0; i < DEEP; i++)
        if (marks) at[i] = MARK;
        else seen[i] = at[i];
}

static void report(const char *name)
{
    int found = 0, other = 0;
    below(0);
    for (int j = 0; j < 6; j++)
        for (int r = 0; r <= ROUNDS; r++)
            for (size_t i = 0; i + 16 <= DEEP; i++) found += !memcmp(seen + i, terms[j].round[r], 16);
    for (size_t i = 0; i < DEEP; i++) other += seen[i] != MARK && seen[i] != 0;
    printf("%s %d %d\n", name, found, other);
}

int main(void)
{
    const float scales[6] = {1000, 4096, 4096, 500, -500, 700};
    const signed char signs[6] = {1, 1, -1, 1, -1, 1};
    for (int i = 0; i < 32 * 6; i++) keys[i] = (unsigned char)(i * 37 + 11);
    for (int j = 0; j < 6; j++) expand(&terms[j], keys + 32 * j);
    for (int i = 0; PATHS[i].name; i++) {
        if (!supports(PATHS[i].name)) continue;
        for (int with = 0; with < 2; with++) {
            const Data data = {with ? values : NULL, 0, 1.0};
            below(1);
            accumulated(PATHS[i].name, out, COUNT, 0, keys, scales, 6, data);
            report(PATHS[i].name);
        }
        below(1);
        drawn(PATHS[i].name, out, COUNT, 0, keys, signs, 6, 1);
        report(PATHS[i].name);
    }
    return 0;
}
