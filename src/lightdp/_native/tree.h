/* The hash tree of a roster (lightdp.keys.nodes): made of sorted enrolments, read and hashed, and pruned.
 *
 * Bytes may come from anybody: nothing is read beyond them, and whatever is not a tree is refused without saying why.
 */
#include <stdlib.h>

#define NAME_MAX_BYTES 64
#define KEY_BYTES 65                  /* of a name, padded with zeros */
#define KEY_BITS (8 * KEY_BYTES)
#define ENROLMENT_BYTES 160           /* after the name */
#define INNER_BYTES 3
#define PRUNED_BYTES 37
#define NOTHING SIZE_MAX

enum { LEAF, INNER, PRUNED };

/* the columns of a tree's nodes, in preorder, little-endian */
typedef struct {
    uint8_t *starts, *ends, *bits, *counts, *hashes;   /* 8, 4, 2, 4 and 32 bytes a node */
} Nodes;

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)in[i] << 8 * i;
    return value;
}

/* where the enrolment at `at` ends, or 0 if there is none */
static size_t enrolment_end(const uint8_t *data, size_t size, size_t at)
{
    if (at >= size || data[at] > NAME_MAX_BYTES) return 0;
    const size_t bytes = 1 + (size_t)data[at] + ENROLMENT_BYTES;
    return bytes <= size - at ? at + bytes : 0;
}

static size_t node_end(const uint8_t *data, size_t size, size_t at)
{
    if (at >= size || data[at] > PRUNED) return 0;
    if (data[at] == LEAF) return enrolment_end(data, size, at + 1);
    const size_t bytes = data[at] == INNER ? INNER_BYTES : PRUNED_BYTES;
    return bytes <= size - at ? at + bytes : 0;
}

/* how many nodes these bytes have, or 0 if they are not exactly one tree */
static size_t count_nodes(const uint8_t *data, size_t size)
{
    size_t at = 0, missing = 1, count = 0;
    for (; missing; count++) {
        const size_t end = node_end(data, size, at);
        if (!end) return 0;
        missing = data[at] == INNER ? missing + 1 : missing - 1;
        at = end;
    }
    return at == size ? count : 0;
}

/* byte i of a padded name; `name` points to its length */
static unsigned name_byte(const uint8_t *name, size_t i)
{
    return i < name[0] ? name[1 + i] : 0;
}

static unsigned name_bit(const uint8_t *name, unsigned bit)
{
    return name_byte(name, bit / 8) >> (7 - bit % 8) & 1;
}

/* the first bit in which the left name has 0 and the right one 1; KEY_BITS if they are equal or in the wrong order */
static unsigned first_turn(const uint8_t *left, const uint8_t *right)
{
    for (size_t i = 0; i < KEY_BYTES; i++) {
        const unsigned differ = name_byte(left, i) ^ name_byte(right, i);
        unsigned bit = 0;
        if (!differ) continue;
        while (!(differ << bit & 0x80)) bit++;
        return name_bit(right, (unsigned)(8 * i) + bit) ? (unsigned)(8 * i) + bit : KEY_BITS;
    }
    return KEY_BITS;
}

/* ---- the tree of enrolments that are sorted by name ---- */

static size_t count_enrolments(const uint8_t *data, size_t size)
{
    size_t count = 0;
    for (size_t at = 0; at < size; count++)
        if (!(at = enrolment_end(data, size, at))) return 0;
    return count;
}

/* write the tree from its end, size + 4 count - 3 bytes; 1, 0 if names are not in order, or -1 without memory */
static int planted(uint8_t *tree, const uint8_t *data, size_t size, size_t count)
{
    size_t *starts = malloc(count * sizeof(*starts)), at = 0;
    uint8_t *out = tree + size + 4 * count - 3;
    int path[KEY_BITS + 1], depth = 0;                 /* bits of inner nodes whose first leaf is further to the left; they grow */
    if (!starts) return -1;
    for (size_t i = 0; i < count; i++) starts[i] = at, at = enrolment_end(data, size, at);
    for (size_t i = count; i-- > 0;) {
        const size_t bytes = (i + 1 < count ? starts[i + 1] : size) - starts[i];
        const int turn = i ? (int)first_turn(data + starts[i - 1], data + starts[i]) : -1;
        if (turn == KEY_BITS) {
            free(starts);
            return 0;
        }
        out -= bytes;
        memcpy(out, data + starts[i], bytes);
        *--out = LEAF;
        while (depth && path[depth - 1] > turn) {
            out -= INNER_BYTES;
            out[0] = INNER;
            put(out + 1, (uint64_t)path[--depth], 2);
        }
        path[depth++] = turn;
    }
    free(starts);
    return 1;
}

/* ---- bits, counts and hashes of all nodes, from the last to the first ---- */

typedef struct {
    size_t node, first, last;                          /* a node, and where the first and last names are that are shown below it */
} Below;

static void hash_inner(uint8_t *out, unsigned bit, const Nodes *nodes, size_t left, size_t right, Compress *compress)
{
    uint8_t text[3 + 2 * (4 + SHA_BYTES)] = {INNER};
    const size_t sides[2] = {left, right};
    put(text + 1, bit, 2);
    for (int i = 0; i < 2; i++) {
        memcpy(text + 3 + 36 * i, nodes->counts + 4 * sides[i], 4);
        memcpy(text + 7 + 36 * i, nodes->hashes + SHA_BYTES * sides[i], SHA_BYTES);
    }
    digest(out, text, sizeof(text), compress);
}

/* whether an inner node parts what is below it, and is above it; then its columns are written, and it takes their place */
static int joined(const uint8_t *data, const Nodes *nodes, size_t at, Below *left, const Below *right, Compress *compress)
{
    const unsigned bit = (unsigned)get(data + get(nodes->starts + 8 * at, 8) + 1, 2);
    const uint64_t count = get(nodes->counts + 4 * left->node, 4) + get(nodes->counts + 4 * right->node, 4);
    if (bit >= KEY_BITS || bit >= get(nodes->bits + 2 * left->node, 2) || bit >= get(nodes->bits + 2 * right->node, 2)) return 0;
    if (count >> 32 || (left->first == NOTHING && right->first == NOTHING)) return 0;
    if (left->first == NOTHING) {
        if (!name_bit(data + right->first, bit)) return 0;
        left->first = right->first;
    } else if (right->first == NOTHING) {
        if (name_bit(data + left->last, bit)) return 0;
    } else if (first_turn(data + left->last, data + right->first) != bit) return 0;
    if (right->first != NOTHING) left->last = right->last;
    put(nodes->ends + 4 * at, get(nodes->ends + 4 * right->node, 4), 4);
    put(nodes->bits + 2 * at, bit, 2);
    put(nodes->counts + 4 * at, count, 4);
    hash_inner(nodes->hashes + SHA_BYTES * at, bit, nodes, left->node, right->node, compress);
    left->node = at;
    return 1;
}

/* 1, 0 if it is not a tree, or -1 without memory; `count` is that of count_nodes */
static int folded(const Nodes *nodes, const uint8_t *data, size_t size, size_t count, Compress *compress)
{
    Below *waiting = malloc((count / 2 + 1) * sizeof(*waiting));   /* as many as there are leaves and pruned nodes */
    size_t depth = 0, begin = 0;
    int fits = 1;
    if (!waiting) return -1;
    for (size_t at = 0; at < count; at++) put(nodes->starts + 8 * at, begin, 8), begin = node_end(data, size, begin);
    for (size_t at = count; fits && at-- > 0;) {
        const size_t start = (size_t)get(nodes->starts + 8 * at, 8);
        if (data[start] == INNER) {                    /* what is on its left was read last */
            fits = joined(data, nodes, at, &waiting[depth - 1], &waiting[depth - 2], compress);
            waiting[depth - 2] = waiting[depth - 1];
            depth--;
            continue;
        }
        waiting[depth] = (Below){at, NOTHING, NOTHING};
        put(nodes->ends + 4 * at, at + 1, 4);
        put(nodes->bits + 2 * at, KEY_BITS, 2);
        if (data[start] == LEAF) {
            put(nodes->counts + 4 * at, 1, 4);
            digest(nodes->hashes + SHA_BYTES * at, data + start, node_end(data, size, start) - start, compress);
            waiting[depth].first = waiting[depth].last = start + 1;
        } else {
            memcpy(nodes->counts + 4 * at, data + start + 1, 4);
            memcpy(nodes->hashes + SHA_BYTES * at, data + start + 5, SHA_BYTES);
            fits = get(data + start + 1, 4) > 0;
        }
        depth++;
    }
    free(waiting);
    return fits;
}

/* ---- the tree that shows some leaves alone ---- */

/* how many bytes it has, which are written unless `out` is NULL; 0 if a wanted place is not shown, or columns point
 * beyond the tree */
static size_t pruned(uint8_t *out, const Nodes *nodes, size_t count, const uint8_t *data, size_t size, const uint8_t *wanted, size_t n)
{
    size_t at = 0, next = 0, bytes = 0;
    uint64_t place = 0;
    while (at < count) {
        const uint64_t below = get(nodes->counts + 4 * at, 4), start = get(nodes->starts + 8 * at, 8);
        const size_t after = (size_t)get(nodes->ends + 4 * at, 4), end = start < size ? node_end(data, size, (size_t)start) : 0;
        if (after <= at || after > count || !end) return 0;
        if (next == n || get(wanted + 4 * next, 4) >= place + below) {
            if (out) {
                out[bytes] = PRUNED;
                memcpy(out + bytes + 1, nodes->counts + 4 * at, 4);
                memcpy(out + bytes + 5, nodes->hashes + SHA_BYTES * at, SHA_BYTES);
            }
            bytes += PRUNED_BYTES;
            place += below;
            at = after;
            continue;
        }
        if (get(wanted + 4 * next, 4) < place || data[start] == PRUNED) return 0;
        if (data[start] == LEAF) place++, next++;
        if (out) memcpy(out + bytes, data + start, end - start);
        bytes += end - (size_t)start;
        at++;
    }
    return next == n ? bytes : 0;
}
