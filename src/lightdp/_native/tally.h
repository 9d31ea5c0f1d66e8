/* Bits of keystreams, counted: from the bytes of count.h to integers. Part of noise.h, where the processor has paths. */

/* Sum up the bytes of words of so many bits. */
SETTLE static void gather(uint32_t *__restrict sum, const Counters *__restrict c, size_t n, int bits)
{
    memset(sum, 0, sizeof(*sum) * SPAN * 8 / (size_t)bits);
    for (int k = 0; n >> WEIGHTS * k; k++) {
        const int shift = WEIGHTS * k;
        if (bits == 8)
            for (int i = 0; i < SPAN; i++) sum[i] += (uint32_t)c->ones[k].byte[i] << shift;
        else if (bits == 16)
            for (int i = 0; i < SPAN / 2; i++) sum[i] += ((c->ones[k].pair[i] & 0xffu) + (c->ones[k].pair[i] >> 8)) << shift;
        else if (bits == 32)
            for (int i = 0; i < SPAN / 4; i++) {
                const uint32_t four = c->ones[k].quad[i], two = (four & 0xff00ff) + (four >> 8 & 0xff00ff);
                sum[i] += ((two & 0xffff) + (two >> 16)) << shift;
            }
        else
            for (int i = 0; i < SPAN / 8; i++) {
                const uint64_t eight = c->ones[k].eight[i], four = (eight & 0xff00ff00ff00ff) + (eight >> 8 & 0xff00ff00ff00ff);
                const uint32_t two = (uint32_t)(four + (four >> 32));
                sum[i] += ((two & 0xffff) + (two >> 16)) << shift;
            }
    }
}

APART SETTLE static void tally(uint32_t *out, uint64_t start, uint64_t count, const Term *terms, size_t n, int bits, uint32_t unit, Count *counts)
{
    uint32_t sum[SPAN] __attribute__((aligned(64)));
    const uint64_t values = SPAN * 8 / (uint64_t)bits;
    const uint32_t middle = (uint32_t)n * (uint32_t)bits / 2;
    Counters counters;
    for (uint64_t done = 0; done < count;) {
        const uint64_t span = (start + done) / values, from = (start + done) % values;
        const uint64_t size = values - from < count - done ? values - from : count - done;
        counts(&counters, terms, n, span * (SPAN / 16));
        gather(sum, &counters, n, bits);
        for (uint64_t i = 0; i < size; i++) out[done + i] += unit * (sum[from + i] - middle);
        done += size;
    }
}

/* Add unit * sum of sign * (bits set among `bits` bits of keystream - bits / 2) over n keys of 32 bytes to `count` integers.
 * `backend` must be supported; `bits` is 8, 16, 32 or 64. Returns 0 if there is no memory. */
static int counted(const char *backend, uint32_t *out, uint64_t count, uint64_t start, const unsigned char *keys,
                   const signed char *signs, size_t n, int bits, uint32_t unit)
{
    const Path *path = PATHS;
    const size_t most = n < KEYS ? n : KEYS;
    char *memory = malloc(sizeof(Term) * (most + 1));
    if (!memory) return 0;
    Term *terms = (Term *)(memory + (64 - (uintptr_t)memory % 64));
    while (strcmp(path->name, backend)) path++;
    for (size_t first = 0; first < n && count; first += KEYS) {
        const size_t some = n - first < KEYS ? n - first : KEYS;
        for (size_t j = 0; j < some; j++) {
            expand(&terms[j], keys + 32 * (first + j));
            if (signs[first + j] < 0)  /* the last key is added to the keystream: its complement counts the zeros */
                for (int i = 0; i < 16; i++) terms[j].round[ROUNDS][i] ^= 0xff;
        }
        tally(out, start, count, terms, some, bits, unit, path->count);
    }
    wipe(terms, sizeof(Term) * most);
    free(memory);
    wipe_frames();                    /* at last: a loader that looks up `free` only now saves registers there */
    return 1;
}
