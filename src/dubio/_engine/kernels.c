/* Weights of a Gaussian posterior, their divergence from the prior, and noise, on a CPU.
 *
 * A weight is `mean + softplus(rho) * noise` (E-15, E-16). One pass over the parameters draws it, as often as there are
 * draws, and adds up the divergence from the prior (E-7, E-19); another pass writes the gradients of both. What stands
 * in memory is read once and written once; all else stays in blocks that fit into the first cache.
 *
 * `kernels.py` loads this file as a shared library with ctypes and holds the counterparts of its structures. It is
 * plain C: no header of Python or torch, no global state, nothing that is allocated.
 *
 * Noise. Frozen noise is Philox 4x32-10 with the counters of `triton_kernel.py`: a number is a function of its key and
 * its place. Fresh noise is xoshiro128++ in 64 lanes; a block of 4,096 numbers begins with states that Philox computes
 * from key and block. So neither depends on the number of threads, and neighbouring keys give unrelated numbers. Normal
 * numbers are made by Box and Muller's transform.
 *
 * Arithmetic. Loops are written so that a compiler vectorises them: no calls, no branches. Each is compiled for three
 * sets of instructions, of which the best that the processor has is taken when the library runs. A NaN stays a NaN
 * and nothing depends on -ffast-math, which would flush denormal numbers in the whole process. Polynomials are minimax
 * approximations on the intervals that are given; their relative errors are below 1e-7.
 *
 * Threads. The library has no OpenMP runtime of its own. It is handed GOMP_parallel of the runtime that torch uses, by
 * its address: a second runtime would start threads of its own and compete for the cores. Threads take units of work
 * from a counter; each unit has a place of its own for its sum, so that sums do not depend on the threads either.
 *
 * References: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3; Blackman and Vigna 2021, Scrambled
 * Linear Pseudorandom Number Generators; Box and Muller 1958.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif
#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

#define INTERFACE 1 /* to be counted up with every change that kernels.py must follow */
#define TILE 4096   /* numbers that are worked on at a time */
#define CHUNK 256   /* numbers of a loop */
#define QUARTER (TILE / 4)
#define LANES 64
#define MOST_UNITS 1024
#define TILES_A_UNIT 4 /* at least: some 20 microseconds of work */
#define FRESH_MEMORY ((size_t)1 << 25) /* bytes from which malloc gives memory that was never written to */

enum { NORMAL, UNIFORM, SIGN };                 /* kinds of noise, as in triton_kernel.py */
enum { GIVEN, FRESH, FROZEN };                  /* where noise comes from */
enum { NO_PRIOR, NORMAL_PRIOR, MIXTURE_PRIOR }; /* what the divergence is taken from */
enum { RANDOM, FIXED, REMOVED };                /* what a weight is */

typedef void (*parallel_function)(void (*work)(void *), void *data, unsigned num_threads, unsigned flags);

/* How work is spread. */
struct threads {
    parallel_function parallel; /* GOMP_parallel, or NULL */
    int64_t num_threads;
    int64_t level; /* the set of instructions: at most the one that dubio_level() returns */
};

/* Draws of a tensor of weights. Pointers to what is absent are NULL. */
struct draws {
    struct threads threads;
    int64_t num_weights, num_draws;
    const float *mean, *rho, *centre;
    const uint8_t *removed, *fixed;
    int64_t prior;
    /* Of a normal prior: its mean where there is no centre, and its standard deviation. Of a mixture: the weight of the
     * wide component, and both standard deviations. */
    double prior_parameters[3];
    int64_t noise;
    const uint64_t *keys;
    const uint8_t *mirrored;        /* for each draw: whether its noise has the opposite sign */
    const float *const *given;      /* for each draw: its noise */
    int64_t around_zero;            /* whether draws are perturbations, without the mean */
    float *const *weights;          /* for each draw */
    double *divergence;             /* one number, with a mixture one for each draw */
    double *sums;                   /* as many numbers for each unit of dubio_units() */
    const float *const *gradients;  /* of each draw */
    const float *divergence_gradients;
    float *mean_gradient, *rho_gradient;
};

/* Noise alone: numbers of each draw, in rows. */
struct noise {
    struct threads threads;
    int64_t num_draws, num_rows, width, first_row;
    int64_t kind, noise;
    const uint64_t *keys;
    const uint8_t *mirrored;
    float *out; /* (draw, row, width) */
};

/* Elementary functions. */

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The logarithm of a positive, normal number: 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). */
INLINE float log_of(float value) {
    int32_t k = (int32_t)(bits_of(value) - 0x3f3504f3u) >> 23;
    float f = float_of(bits_of(value) - ((uint32_t)k << 23)) - 1.0f;
    float p = 0.08917864107f;
    p = p * f - 0.1435020063f;
    p = p * f + 0.1487696244f;
    p = p * f - 0.1656563463f;
    p = p * f + 0.1996539801f;
    p = p * f - 0.2500174693f;
    p = p * f + 0.3333385807f;
    float low = f * f * (p * f - 0.5f) + (float)k * -2.12194440e-4f;
    return low + f + (float)k * 0.693359375f;
}

/* exp(-value) of a number that is not negative. Below exp(-104) it is zero in float. */
INLINE float exp_minus(float value) {
    float bounded = value > 104.0f ? 104.0f : value; /* in this order: a NaN stays */
    float n = bounded * -1.44269504f + 12582912.0f;  /* 1.5 * 2^23, which rounds to a whole number */
    int32_t k = (int32_t)(bits_of(n) - 0x4b400000u);
    n -= 12582912.0f;
    float r = (-bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 0.001395171918f;
    p = p * r + 0.00836959822f;
    p = p * r + 0.04166618726f;
    p = p * r + 0.1666651289f;
    p = p * r + 0.5000000101f;
    p = p * (r * r) + r + 1.0f;
    int32_t half = k >> 1; /* 2^k in two factors, since it may be denormal */
    return p * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(k - half + 127) << 23);
}

/* log(1 + e) / e for e in [0, 1]. */
INLINE float log1p_ratio(float e) {
    float p = 0.005384055791f;
    p = p * e - 0.03011094058f;
    p = p * e + 0.07921070059f;
    p = p * e - 0.1374661885f;
    p = p * e + 0.1914511488f;
    p = p * e - 0.2485294537f;
    p = p * e + 0.333203435f;
    p = p * e - 0.4999955259f;
    return p * e + 0.9999999745f;
}

/* The softplus of rho and what belongs to it. Below zero it is e * ratio, with factors that never vanish. */
struct scale {
    float e;      /* exp(-|rho|) */
    float std;    /* softplus(rho) */
    float factor; /* std, below zero std / e: in [log 2, 1] or above */
};

INLINE struct scale scale_of(float rho) {
    struct scale scale;
    scale.e = exp_minus(fabsf(rho));
    float ratio = log1p_ratio(scale.e);
    scale.std = (rho > 0.0f ? rho : 0.0f) + scale.e * ratio;
    scale.factor = rho > 0.0f ? scale.std : ratio;
    return scale;
}

/* log softplus(rho), exact far below zero. */
INLINE float log_std(float rho, struct scale scale) {
    return (rho > 0.0f ? 0.0f : rho) + log_of(scale.factor);
}

/* sigmoid(rho) / softplus(rho), which tends to one far below zero, where both vanish. */
INLINE float sigmoid_ratio(struct scale scale) {
    return 1.0f / ((1.0f + scale.e) * scale.factor);
}

/* A mixture's log density without -log(2 pi) / 2, and minus its derivative. */
struct mixture {
    float wide_log, wide_precision, narrow_log, narrow_precision;
};

INLINE struct mixture mixture_of(const double parameters[3]) {
    struct mixture mixture;
    mixture.wide_log = (float)(log(parameters[0]) - log(parameters[1]));
    mixture.wide_precision = (float)(1.0 / (parameters[1] * parameters[1]));
    mixture.narrow_log = (float)(log1p(-parameters[0]) - log(parameters[2]));
    mixture.narrow_precision = (float)(1.0 / (parameters[2] * parameters[2]));
    return mixture;
}

INLINE float mixture_log_prob(float weight, struct mixture mixture) {
    float half = -0.5f * weight * weight;
    float wide = half * mixture.wide_precision + mixture.wide_log;
    float narrow = half * mixture.narrow_precision + mixture.narrow_log;
    float e = exp_minus(fabsf(wide - narrow));
    return (wide > narrow ? wide : narrow) + e * log1p_ratio(e);
}

INLINE float mixture_slope(float weight, struct mixture mixture) {
    float half = -0.5f * weight * weight;
    float precision = mixture.wide_precision - mixture.narrow_precision;
    float difference = half * precision + (mixture.wide_log - mixture.narrow_log);
    float e = exp_minus(fabsf(difference)), larger = 1.0f / (1.0f + e);
    float wide = difference > 0.0f ? larger : e * larger, narrow = difference > 0.0f ? e * larger : larger;
    return weight * (wide * mixture.wide_precision + narrow * mixture.narrow_precision);
}

/* Random numbers. */

/* Philox 4x32-10 for counters (place + i, row, third, fourth), or (places[i], rows[i], third, fourth). */
INLINE void philox(uint32_t *restrict a, uint32_t *restrict b, uint32_t *restrict c, uint32_t *restrict d, int count,
                   uint32_t place, uint32_t row, const uint32_t *restrict places, const uint32_t *restrict rows,
                   uint32_t third, uint32_t fourth, uint64_t key) {
    for (int i = 0; i < count; i++) {
        uint32_t first = places ? places[i] : place + (uint32_t)i, second = rows ? rows[i] : row;
        uint32_t x = first, y = second, z = third, w = fourth;
        uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            uint64_t p = (uint64_t)x * 0xd2511f53u, q = (uint64_t)z * 0xcd9e8d57u;
            x = (uint32_t)(q >> 32) ^ y ^ low;
            y = (uint32_t)q;
            z = (uint32_t)(p >> 32) ^ w ^ high;
            w = (uint32_t)p;
            low += 0x9e3779b9u;
            high += 0xbb67ae85u;
        }
        a[i] = x;
        b[i] = y;
        c[i] = z;
        d[i] = w;
    }
}

struct lanes {
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
};

/* The states that a block of fresh numbers begins with. */
INLINE void seed_lanes(struct lanes *lanes, uint64_t key, int64_t block) {
    uint32_t low = (uint32_t)block, high = (uint32_t)((uint64_t)block >> 32);
    philox(lanes->a, lanes->b, lanes->c, lanes->d, LANES, 0, low, NULL, NULL, high, 0x64756269u, key);
}

INLINE uint32_t rotated(uint32_t value, int by) {
    return (value << by) | (value >> (32 - by));
}

/* The next words of all lanes, of each after the other: `count` must be a multiple of their number. */
INLINE void next_words(struct lanes *restrict lanes, uint32_t *restrict out, int count) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t a = lanes->a[lane], b = lanes->b[lane], c = lanes->c[lane], d = lanes->d[lane];
        for (int at = 0; at < count; at += LANES) {
            out[at + lane] = rotated(a + d, 7) + a;
            uint32_t shifted = b << 9;
            c ^= a;
            d ^= b;
            b ^= c;
            a ^= d;
            c ^= shifted;
            d = rotated(d, 11);
        }
        lanes->a[lane] = a;
        lanes->b[lane] = b;
        lanes->c[lane] = c;
        lanes->d[lane] = d;
    }
}

/* Two normal numbers from two words. The angle is reduced to an eighth of a turn without an error, as an integer. */
INLINE void normals(float *restrict one, float *restrict two, const uint32_t *restrict first,
                    const uint32_t *restrict second, int count, float sign) {
    for (int i = 0; i < count; i++) {
        float uniform = ((float)first[i] + 0.5f) * 0x1p-32f;
        float radius = sign * sqrtf(-2.0f * log_of(uniform));
        uint32_t quadrant = (second[i] + 0x20000000u) >> 30;
        float angle = (float)(int32_t)(second[i] - (quadrant << 30)) * 1.4629180792671596e-9f;
        float square = angle * angle;
        float sine = angle + angle * square * ((-0.0001951729889f * square + 0.008332178145f) * square - 0.1666665494f);
        float cosine = 1.0f + square * (square * (-0.00136524501f * square + 0.04166127862f) - 0.5f);
        float x = quadrant & 1 ? sine : cosine, y = quadrant & 1 ? cosine : sine;
        one[i] = radius * float_of(bits_of(x) ^ (((quadrant + 1) & 2) << 30));
        two[i] = radius * float_of(bits_of(y) ^ ((quadrant & 2) << 30));
    }
}

/* Uniform numbers in [0, 1), by the rule of Triton's uint_to_uniform_float. */
INLINE void uniforms(float *restrict out, const uint32_t *restrict words, int count) {
    for (int i = 0; i < count; i++) {
        int32_t word = (int32_t)words[i];
        out[i] = (float)(word < 0 ? ~word : word) * 4.6566127342e-10f;
    }
}

/* In a loop of its own: fused with the product it would round once where it must round twice. */
INLINE void mirror_uniforms(float *restrict out, int count) {
    for (int i = 0; i < count; i++) {
        out[i] = 1.0f - out[i];
    }
}

INLINE void signs(float *restrict out, const uint32_t *restrict words, int count) {
    for (int i = 0; i < count; i++) {
        out[i] = float_of((words[i] & 0x80000000u) ^ 0x3f800000u);
    }
}

/* Draws. A tile is worked on in spans, of which each is contiguous in memory. */

struct span {
    int64_t offset; /* of its first weight */
    int count;
    int place;      /* of its first number in the tile */
};

INLINE int64_t least(int64_t one, int64_t other) {
    return one < other ? one : other;
}

INLINE int64_t ratio_up(int64_t numerator, int64_t denominator) {
    return numerator / denominator + (numerator % denominator != 0);
}

static int64_t num_tiles_of(const struct draws *draws) {
    if (draws->noise == FROZEN) {
        return ratio_up(ratio_up(draws->num_weights, 4), QUARTER);
    }
    return ratio_up(draws->num_weights, TILE);
}

/* The spans of a tile. A call of Philox gives four numbers, which are stored a quarter of the tensor apart. */
INLINE int spans_of(const struct draws *draws, int64_t tile, struct span spans[4]) {
    if (draws->noise != FROZEN) {
        spans[0].offset = tile * TILE;
        spans[0].count = (int)least(TILE, draws->num_weights - tile * TILE);
        spans[0].place = 0;
        return 1;
    }
    int64_t calls = ratio_up(draws->num_weights, 4), first = tile * QUARTER;
    int64_t count = least(QUARTER, calls - first);
    int num_spans = 0;
    for (int quarter = 0; quarter < 4; quarter++) {
        struct span *span = spans + num_spans;
        span->offset = quarter * calls + first;
        span->count = (int)least(count, draws->num_weights - span->offset);
        span->place = quarter * QUARTER;
        num_spans += span->count > 0;
    }
    return num_spans;
}

/* The normal numbers of a tile for one draw, at least those of its spans. */
INLINE void fill_tile(float *restrict out, const struct draws *draws, int64_t draw, int64_t tile, int count) {
    uint32_t a[CHUNK], b[CHUNK], c[CHUNK], d[CHUNK];
    float sign = draws->mirrored && draws->mirrored[draw] ? -1.0f : 1.0f;
    uint64_t key = draws->keys[draw];
    if (draws->noise == FRESH) {
        struct lanes lanes;
        seed_lanes(&lanes, key, tile);
        for (int at = 0; at < count; at += 2 * CHUNK) {
            next_words(&lanes, a, CHUNK);
            next_words(&lanes, b, CHUNK);
            normals(out + at, out + at + CHUNK, a, b, CHUNK, sign);
        }
    } else {
        for (int at = 0; at < count; at += CHUNK) {
            philox(a, b, c, d, CHUNK, (uint32_t)(tile * QUARTER + at), 0, NULL, NULL, 0, 0, key);
            normals(out + at, out + QUARTER + at, a, b, CHUNK, sign);
            normals(out + 2 * QUARTER + at, out + 3 * QUARTER + at, c, d, CHUNK, sign);
        }
    }
}

/* What the weights of a span are; returns whether any is not random. */
INLINE int states_of(uint8_t *restrict states, const struct draws *draws, struct span span) {
    const uint8_t *removed = draws->removed, *fixed = draws->fixed;
    if (!removed && !fixed) {
        return 0;
    }
    for (int i = 0; i < span.count; i++) {
        uint8_t state = fixed && fixed[span.offset + i] ? FIXED : RANDOM;
        states[i] = removed && removed[span.offset + i] ? REMOVED : state;
    }
    return 1;
}

INLINE void clear_unless_random(float *restrict values, const uint8_t *restrict states, int count) {
    for (int i = 0; i < count; i++) {
        values[i] = states[i] ? 0.0f : values[i];
    }
}

INLINE double sum_of(const float *restrict values, int count) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < count; i++) {
        sum += (double)values[i];
    }
    return sum;
}

INLINE void scales(float *restrict stds, float *restrict logs, const float *restrict rho, int count, int with_logs) {
    for (int i = 0; i < count; i++) {
        struct scale scale = scale_of(rho[i]);
        stds[i] = scale.std;
        if (with_logs) {
            logs[i] = log_std(rho[i], scale);
        }
    }
}

/* How far means lie from those of the prior. */
INLINE void distances(float *restrict out, const struct draws *draws, int64_t offset, int count) {
    const float *restrict mean = draws->mean + offset;
    if (draws->centre) {
        const float *restrict centre = draws->centre + offset;
        for (int i = 0; i < count; i++) {
            out[i] = mean[i] - centre[i];
        }
    } else {
        float centre = (float)draws->prior_parameters[0];
        for (int i = 0; i < count; i++) {
            out[i] = mean[i] - centre;
        }
    }
}

/* What a tile adds to the divergences, and its draws. */
INLINE void draw_tile(const struct draws *draws, int64_t tile, double *sums) {
    struct span spans[4];
    float stds[TILE], logs[TILE], own[TILE], terms[CHUNK];
    uint8_t states[TILE];
    int num_spans = spans_of(draws, tile, spans), masked = 0;
    int with_divergence = draws->divergence != NULL, with_mixture = with_divergence && draws->prior == MIXTURE_PRIOR;
    double prior_std = draws->prior_parameters[1];
    float precision = (float)(1.0 / prior_std), log_prior = (float)(log(prior_std) - 0.5);
    struct mixture mixture = mixture_of(draws->prior_parameters);

    for (int part = 0; part < num_spans; part++) {
        struct span span = spans[part];
        masked = states_of(states + span.place, draws, span);
        for (int at = 0; at < span.count; at += CHUNK) {
            int count = (int)least(CHUNK, span.count - at), place = span.place + at;
            const float *rho = draws->rho + span.offset + at;
            if (with_divergence) {
                scales(stds + place, logs + place, rho, count, 1);
            } else {
                scales(stds + place, logs + place, rho, count, 0);
            }
            if (with_divergence && !with_mixture) {
                float differences[CHUNK];
                distances(differences, draws, span.offset + at, count);
                for (int i = 0; i < count; i++) {
                    float ratio = stds[place + i] * precision, distance = differences[i] * precision;
                    terms[i] = 0.5f * (ratio * ratio + distance * distance) - (logs[place + i] - log_prior);
                }
                if (masked) {
                    clear_unless_random(terms, states + place, count);
                }
                sums[0] += sum_of(terms, count);
            }
            if (masked) {
                clear_unless_random(stds + place, states + place, count);
            }
        }
    }
    for (int64_t draw = 0; draw < draws->num_draws; draw++) {
        if (draws->noise != GIVEN) {
            fill_tile(own, draws, draw, tile, spans[0].count);
        }
        for (int part = 0; part < num_spans; part++) {
            struct span span = spans[part];
            for (int at = 0; at < span.count; at += CHUNK) {
                int count = (int)least(CHUNK, span.count - at), place = span.place + at;
                int64_t offset = span.offset + at;
                const float *restrict mean = draws->mean + offset;
                const float *restrict noise = draws->noise == GIVEN ? draws->given[draw] + offset : own + place;
                if (draws->weights) {
                    float *restrict out = draws->weights[draw] + offset;
                    if (draws->around_zero) {
                        for (int i = 0; i < count; i++) {
                            out[i] = stds[place + i] * noise[i];
                        }
                    } else {
                        for (int i = 0; i < count; i++) {
                            out[i] = mean[i] + stds[place + i] * noise[i];
                        }
                    }
                    if (masked) {
                        for (int i = 0; i < count; i++) {
                            out[i] = states[place + i] == REMOVED ? 0.0f : out[i];
                        }
                    }
                }
                if (with_mixture) {
                    for (int i = 0; i < count; i++) {
                        float weight = mean[i] + stds[place + i] * noise[i];
                        float log_prob = mixture_log_prob(weight, mixture);
                        terms[i] = -0.5f * noise[i] * noise[i] - logs[place + i] - log_prob;
                    }
                    if (masked) {
                        clear_unless_random(terms, states + place, count);
                    }
                    sums[draw] += sum_of(terms, count);
                }
            }
        }
    }
}

/* The gradients of a tile: of the draws and of the divergences, for means and for rho. */
INLINE void differentiate_tile(const struct draws *draws, int64_t tile) {
    struct span spans[4];
    /* Sums over draws, of gradients and of gradients times noise. */
    float plain[TILE], noisy[TILE], own[TILE], stds[TILE];
    uint8_t states[TILE];
    int num_spans = spans_of(draws, tile, spans), masked = 0;
    const float *divergence_gradients = draws->divergence_gradients;
    int with_mixture = divergence_gradients && draws->prior == MIXTURE_PRIOR;
    double prior_std = draws->prior_parameters[1], total = 0.0;
    struct mixture mixture = mixture_of(draws->prior_parameters);
    /* Factors of the gradient of the divergence: of distance, std and -1 / std. */
    float slope = 0.0f, inverse = 0.0f;

    if (with_mixture) {
        for (int64_t draw = 0; draw < draws->num_draws; draw++) {
            total += (double)divergence_gradients[draw];
        }
        inverse = (float)total;
    } else if (divergence_gradients) {
        inverse = divergence_gradients[0];
        slope = (float)((double)inverse / (prior_std * prior_std));
    }
    for (int part = 0; part < num_spans; part++) {
        struct span span = spans[part];
        masked = states_of(states + span.place, draws, span);
        memset(plain + span.place, 0, sizeof(float) * (size_t)span.count);
        memset(noisy + span.place, 0, sizeof(float) * (size_t)span.count);
        if (with_mixture) {
            scales(stds + span.place, NULL, draws->rho + span.offset, span.count, 0);
            if (masked) {
                clear_unless_random(stds + span.place, states + span.place, span.count);
            }
        }
    }
    for (int64_t draw = 0; draw < draws->num_draws; draw++) {
        const float *gradients = draws->gradients ? draws->gradients[draw] : NULL;
        if (!gradients && !with_mixture) {
            continue;
        }
        if (draws->noise != GIVEN) {
            fill_tile(own, draws, draw, tile, spans[0].count);
        }
        for (int part = 0; part < num_spans; part++) {
            struct span span = spans[part];
            int place = span.place;
            const float *restrict noise = draws->noise == GIVEN ? draws->given[draw] + span.offset : own + place;
            if (gradients) {
                const float *restrict gradient = gradients + span.offset;
                if (!draws->around_zero) {
                    for (int i = 0; i < span.count; i++) {
                        plain[place + i] += gradient[i];
                    }
                }
                for (int i = 0; i < span.count; i++) {
                    noisy[place + i] += gradient[i] * noise[i];
                }
            }
            if (with_mixture) {
                const float *restrict mean = draws->mean + span.offset;
                float factor = divergence_gradients[draw];
                for (int at = 0; at < span.count; at += CHUNK) {
                    int count = (int)least(CHUNK, span.count - at);
                    float slopes[CHUNK];
                    for (int i = 0; i < count; i++) {
                        float weight = mean[at + i] + stds[place + at + i] * noise[at + i];
                        slopes[i] = factor * mixture_slope(weight, mixture);
                    }
                    if (masked) {
                        clear_unless_random(slopes, states + place + at, count);
                    }
                    for (int i = 0; i < count; i++) {
                        plain[place + at + i] += slopes[i];
                        noisy[place + at + i] += slopes[i] * noise[at + i];
                    }
                }
            }
        }
    }
    for (int part = 0; part < num_spans; part++) {
        struct span span = spans[part];
        for (int at = 0; at < span.count; at += CHUNK) {
            int count = (int)least(CHUNK, span.count - at), place = span.place + at;
            int64_t offset = span.offset + at;
            if (draws->mean_gradient) {
                float differences[CHUNK];
                float *restrict out = draws->mean_gradient + offset;
                if (divergence_gradients && !with_mixture) {
                    distances(differences, draws, offset, count);
                    if (masked) {
                        clear_unless_random(differences, states + place, count);
                    }
                    for (int i = 0; i < count; i++) {
                        out[i] = plain[place + i] + slope * differences[i];
                    }
                } else {
                    memcpy(out, plain + place, sizeof(float) * (size_t)count);
                }
                if (masked) {
                    for (int i = 0; i < count; i++) {
                        out[i] = states[place + i] == REMOVED ? 0.0f : out[i];
                    }
                }
            }
            if (draws->rho_gradient) {
                const float *restrict rho = draws->rho + offset;
                float *restrict out = draws->rho_gradient + offset;
                for (int i = 0; i < count; i++) {
                    struct scale scale = scale_of(rho[i]);
                    float ratio = sigmoid_ratio(scale);
                    out[i] = ratio * scale.std * (noisy[place + i] + slope * scale.std) - ratio * inverse;
                }
                if (masked) {
                    clear_unless_random(out, states + place, count);
                }
            }
        }
    }
}

/* Noise alone: a tile of fresh numbers, or a chunk of calls of Philox. */

static int64_t num_parts_of(const struct noise *noise) {
    if (noise->noise == FROZEN) {
        return ratio_up(noise->num_rows * ratio_up(noise->width, 4), CHUNK);
    }
    return ratio_up(noise->num_rows * noise->width, TILE);
}

INLINE void numbers(float *restrict one, float *restrict two, const uint32_t *restrict first,
                    const uint32_t *restrict second, int64_t kind, int mirrored) {
    if (kind == NORMAL) {
        normals(one, two, first, second, CHUNK, mirrored ? -1.0f : 1.0f);
    } else if (kind == UNIFORM) {
        uniforms(one, first, CHUNK);
        uniforms(two, second, CHUNK);
        if (mirrored) {
            mirror_uniforms(one, CHUNK);
            mirror_uniforms(two, CHUNK);
        }
    } else {
        signs(one, first, CHUNK);
        signs(two, second, CHUNK);
    }
}

INLINE void fill_fresh(const struct noise *noise, int64_t draw, int64_t tile) {
    uint32_t a[CHUNK], b[CHUNK];
    float pair[2 * CHUNK];
    struct lanes lanes;
    int mirrored = noise->mirrored && noise->mirrored[draw];
    int64_t size = noise->num_rows * noise->width, end = least(size, (tile + 1) * TILE);
    seed_lanes(&lanes, noise->keys[draw], tile);
    for (int64_t at = tile * TILE; at < end; at += 2 * CHUNK) {
        next_words(&lanes, a, CHUNK);
        next_words(&lanes, b, CHUNK);
        numbers(pair, pair + CHUNK, a, b, noise->kind, mirrored);
        memcpy(noise->out + draw * size + at, pair, sizeof(float) * (size_t)least(2 * CHUNK, end - at));
    }
}

INLINE void fill_frozen(const struct noise *noise, int64_t draw, int64_t chunk) {
    uint32_t a[CHUNK], b[CHUNK], c[CHUNK], d[CHUNK], places[CHUNK], rows[CHUNK];
    float four[4][CHUNK];
    int mirrored = noise->mirrored && noise->mirrored[draw];
    int64_t a_row = ratio_up(noise->width, 4), first = chunk * CHUNK;
    int count = (int)least(CHUNK, noise->num_rows * a_row - first);
    int64_t row = first / a_row, place = first % a_row;
    float *out = noise->out + draw * noise->num_rows * noise->width;
    uint64_t key = noise->keys[draw];
    uint32_t first_row = (uint32_t)(noise->first_row + row);
    if (a_row - place >= count) {
        philox(a, b, c, d, CHUNK, (uint32_t)place, first_row, NULL, NULL, 0, 0, key);
    } else {
        uint32_t next_row = first_row, next_place = (uint32_t)place;
        for (int i = 0; i < CHUNK; i++) {
            places[i] = next_place;
            rows[i] = next_row;
            next_place++;
            if (next_place == (uint32_t)a_row) {
                next_place = 0;
                next_row++;
            }
        }
        philox(a, b, c, d, CHUNK, 0, 0, places, rows, 0, 0, key);
    }
    numbers(four[0], four[1], a, b, noise->kind, mirrored);
    numbers(four[2], four[3], c, d, noise->kind, mirrored);
    for (int done = 0; done < count;) {
        int run = (int)least(count - done, a_row - place);
        for (int quarter = 0; quarter < 4; quarter++) {
            int64_t column = quarter * a_row + place, wide = least(run, noise->width - column);
            if (wide > 0) {
                memcpy(out + row * noise->width + column, four[quarter] + done, sizeof(float) * (size_t)wide);
            }
        }
        done += run;
        place = 0;
        row++;
    }
}

/* Units of work, for each set of instructions. */

struct work {
    const struct draws *draws;
    const struct noise *noise;
    int64_t num_parts, parts_a_unit, num_units, num_columns;
    int64_t next; /* the unit to be taken next */
};

INLINE void draw_unit(const struct work *work, int64_t unit) {
    const struct draws *draws = work->draws;
    double none = 0.0, *sums = draws->sums ? draws->sums + unit * work->num_columns : &none;
    int64_t end = least(work->num_parts, (unit + 1) * work->parts_a_unit);
    for (int64_t column = 0; column < work->num_columns; column++) {
        sums[column] = 0.0;
    }
    for (int64_t tile = unit * work->parts_a_unit; tile < end; tile++) {
        draw_tile(draws, tile, sums);
    }
}

INLINE void differentiate_unit(const struct work *work, int64_t unit) {
    int64_t end = least(work->num_parts, (unit + 1) * work->parts_a_unit);
    for (int64_t tile = unit * work->parts_a_unit; tile < end; tile++) {
        differentiate_tile(work->draws, tile);
    }
}

/* Parts of all draws are numbered one after another. */
INLINE void noise_unit(const struct work *work, int64_t unit) {
    const struct noise *noise = work->noise;
    int64_t end = least(work->num_parts, (unit + 1) * work->parts_a_unit);
    int64_t a_draw = work->num_parts / noise->num_draws;
    for (int64_t part = unit * work->parts_a_unit; part < end; part++) {
        if (noise->noise == FROZEN) {
            fill_frozen(noise, part / a_draw, part % a_draw);
        } else {
            fill_fresh(noise, part / a_draw, part % a_draw);
        }
    }
}

typedef void (*unit_function)(const struct work *work, int64_t unit);
enum { DRAW, DIFFERENTIATE, NOISE };

#define FUNCTIONS(name, attributes)                                                                                    \
    attributes static void draw_##name(const struct work *work, int64_t unit) {                                        \
        draw_unit(work, unit);                                                                                         \
    }                                                                                                                  \
    attributes static void differentiate_##name(const struct work *work, int64_t unit) {                               \
        differentiate_unit(work, unit);                                                                                \
    }                                                                                                                  \
    attributes static void noise_##name(const struct work *work, int64_t unit) {                                       \
        noise_unit(work, unit);                                                                                        \
    }                                                                                                                  \
    static const unit_function name[] = {draw_##name, differentiate_##name, noise_##name};

FUNCTIONS(plain, )

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
FUNCTIONS(avx2, __attribute__((target("avx2,fma"))))
FUNCTIONS(avx512, __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))))
static const unit_function *const levels[] = {plain, avx2, avx512};

EXPORT int64_t dubio_level(void) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return 0;
    }
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 2
               : 1;
}
#else
static const unit_function *const levels[] = {plain};

EXPORT int64_t dubio_level(void) {
    return 0;
}
#endif

struct team {
    unit_function function;
    struct work *work;
};

static void take_units(void *data) {
    const struct team *team = data;
    struct work *work = team->work;
    for (;;) {
#if defined(__GNUC__)
        int64_t unit = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
#else
        int64_t unit = work->next++; /* such compilers are given no threads */
#endif
        if (unit >= work->num_units) {
            return;
        }
        team->function(work, unit);
    }
}

static int64_t parts_a_unit(int64_t num_parts, int64_t at_least) {
    int64_t parts = ratio_up(num_parts, MOST_UNITS);
    return parts > at_least ? parts : at_least;
}

static void run(struct work *work, const struct threads *threads, int function, int64_t at_least) {
    struct team team = {levels[threads->level][function], work};
    work->parts_a_unit = parts_a_unit(work->num_parts, at_least);
    work->num_units = ratio_up(work->num_parts, work->parts_a_unit);
    work->next = 0;
    int64_t num_threads = least(threads->num_threads, work->num_units);
    if (threads->parallel && num_threads > 1) {
        threads->parallel(take_units, &team, (unsigned)num_threads, 0);
    } else {
        take_units(&team);
    }
}

/* What kernels.py calls. */

EXPORT int64_t dubio_interface(void) {
    return INTERFACE;
}

/* The number of units that the draws of a tensor are cut into. */
EXPORT int64_t dubio_units(const struct draws *draws) {
    int64_t num_tiles = num_tiles_of(draws);
    return ratio_up(num_tiles, parts_a_unit(num_tiles, TILES_A_UNIT));
}

/* Have the system give large pages to what is about to be written: at every 4 KiB of new memory it would stop. */
static void expect_writes(const float *first, size_t size) {
#if defined(MADV_HUGEPAGE)
    if (size >= FRESH_MEMORY) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t begin = ((uintptr_t)first + page - 1) / page * page, end = ((uintptr_t)first + size) / page * page;
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* a hint: nothing is lost where it is refused */
    }
#else
    (void)first;
    (void)size;
#endif
}

EXPORT void dubio_draw(const struct draws *draws) {
    struct work work = {.draws = draws, .num_parts = num_tiles_of(draws)};
    if (draws->divergence) {
        work.num_columns = draws->prior == MIXTURE_PRIOR ? draws->num_draws : 1;
    }
    if (draws->weights && draws->num_draws > 0) {
        const float *first = draws->weights[0], *last = draws->weights[draws->num_draws - 1];
        if (last == first + (draws->num_draws - 1) * draws->num_weights) { /* one stack */
            expect_writes(first, sizeof(float) * (size_t)draws->num_weights * (size_t)draws->num_draws);
        }
    }
    run(&work, &draws->threads, DRAW, TILES_A_UNIT);
    for (int64_t column = 0; column < work.num_columns; column++) {
        double sum = 0.0;
        for (int64_t unit = 0; unit < work.num_units; unit++) {
            sum += draws->sums[unit * work.num_columns + column];
        }
        draws->divergence[column] = sum;
    }
}

EXPORT void dubio_differentiate(const struct draws *draws) {
    struct work work = {.draws = draws, .num_parts = num_tiles_of(draws)};
    run(&work, &draws->threads, DIFFERENTIATE, TILES_A_UNIT);
}

EXPORT void dubio_noise(const struct noise *noise) {
    struct work work = {.noise = noise, .num_parts = noise->num_draws * num_parts_of(noise)};
    expect_writes(noise->out, sizeof(float) * (size_t)(noise->num_draws * noise->num_rows * noise->width));
    run(&work, &noise->threads, NOISE, noise->noise == FROZEN ? TILES_A_UNIT * QUARTER / CHUNK : TILES_A_UNIT);
}
