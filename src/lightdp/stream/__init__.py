"""Noise from 256-bit keys: two clients of a pair get the same integers; data is masked in one pass (W1), (W2).

`accumulate` adds noise to integers, `masked` rounds data together with its own noise. A `Term` is one vector of
Gaussian noise; a `Draw` is one of drawn noise, which is cheaper. A key serves one vector of one kind: Gaussian samples
and drawn values begin with the same keystream.

Keystream. Block n of a key is AES-128, keyed by its first 16 bytes, of its other 16 bytes ⊕ n, n as a little-endian
number: counter mode whose first counter is secret. That makes many keys together no easier to attack than one: what is
computed for a guess of 128 bits serves one target alone. X25519, from which keys come, has 128 bits of security too.

Samples. g(key, σ) is a sequence of int32, fixed by key and σ alone, in tiles of 1024 samples:

1. Tile n takes blocks 320 n ... 320 n + 319 of the keystream, little-endian: words of 32 bits a[512] and b[512], then
   words of 16 bits c[512].
2. (a[i], b[i], c[i]) give samples i (a cosine) and 512 + i (a sine) of the tile: Box-Muller in IEEE binary32.
   Each + − × / √ and each conversion of an integer rounds by itself, to nearest, ties to even; none is fused:
   - U = float(a mod 2^31) × 2^31 + float((b mod 2^31) | 1), so that u = U / 2^62 is in [2^-62, 1], never 0.
   - U = 2^(62 + e) m with m in [√½, √2): subtract 0x5e3504f3 from the bits of U; the upper 9 bits are e; the
     lower 23 plus 0x3f3504f3 are the bits of m. With w = (m − 1) / (m + 1), −2 ln u = −2 e ln 2 − 4 artanh w.
   - radius = √(float(2^23 e) × L − A(w × w) × w) × float(σ).
   - x = float(c) − 32767.5; with the angle α = π x 2^-17 in (−π/4, π/4), s = B(x × x) × x = √½ sin α and
     k = C(x × x) = √½ cos α, so that k − s and k + s are the cosine and the sine of α + π/4.
   - The top bits of a and b are the signs of the two samples, so that angles go all around in 2^18 equal steps.
   A, B, C (Horner's rule; near-minimax fits) and L are constants of `lightdp._native.plain`.
3. z = ± radius × (k ∓ s), whose last bit is set; the sample is the nearest integer. A binary32 that is a tie would go
   to the even integer and favour it; with its last bit set it is none.

Accuracy, in grid units:

| property | value |
| --- | --- |
| mean | 0, exactly: both signs are equally likely |
| variance | σ² + 1/12, for σ of 1 or more; 1/12 is the rounding: choose a grid that makes σ large |
| largest sample | 9.27 σ, which a true Gaussian exceeds once in 5e19 samples |
| resolution | u has 24 significant bits, angles 18; given those, z is right to 8e-7 of the radius |

Drawn values. d(key) is a sequence of integers in −128 ... 127, fixed by the key alone, in tiles of 1024 values:

1. Tile n takes blocks 192 n ... 192 n + 191 of the same keystream: bytes b_0[1024], then b_1[1024], then b_2[1024].
2. If b_0[i] = b_1[i] = 255, value i is b_2[i] as a signed byte (two's complement).
3. Otherwise it is the sum over k = 0, 1, 2 of L_k[b_k[i] mod 16] + H_k[⌊b_k[i] / 16⌋]: six tables of 16 entries each,
   `TABLES` of `lightdp._native.tables`, none of whose sums is beyond ±127.

Where the keystream is replaced by random bits, values are independent and their law is exact: each value has a
probability that is a multiple of 2^-24 and at least 2^-24, as every signed byte is possible in step 2. Only integers
are involved. They come in units, so many steps of the grid each.

Side channels. Time: in the kernel no index or branch depends on a key, a keystream, noise or data (except the refusal
of data that is out of range); drawn values are looked up inside registers. Signs, scales and units are public. The
division and the root of each Gaussian pair see no subnormal; whether they take constant time depends on the processor.
numpy looks drawn values up in tables of 256 bytes: whoever shares its caches may learn which of four lines were read.
Memory: the kernel wipes its round keys, keystreams and noise, also those on its stack; Python's `bytes` last until they
are collected.

A compiled kernel (x86-64 with AES-NI and AVX2, faster with VAES and with AVX-512; 64-bit ARMv8 with NEON and AES) and
numpy with `cryptography`, on any processor of either byte order, give the same noise. Each backend must reproduce known
answers when this module is imported; `backend()` names the one in use.
"""

from lightdp.stream._backends import TILE, Path, backend, paths
from lightdp.stream._sums import (
    LENGTH_MAX,
    SIGMA_MAX,
    UNIT_MAX,
    Draw,
    Floats,
    Integers,
    Term,
    accumulate,
    masked,
)

__all__ = [
    "LENGTH_MAX",
    "SIGMA_MAX",
    "TILE",
    "UNIT_MAX",
    "Draw",
    "Floats",
    "Integers",
    "Path",
    "Term",
    "accumulate",
    "backend",
    "masked",
    "paths",
]
