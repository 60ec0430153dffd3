// A short-time Fourier transform fused with the computation of the tensor: frames are read in place, and only the tensor
// is written. A block handles several frames of one channel. Pairs of frames are the real and imaginary part of one
// complex transform (Stockham's algorithm, in passes of up to VALUES points, which a thread keeps in registers).
//
// Defined at compile time: POINTS, the length of a frame, a power of two from 32 to 2048; VALUES, 8 or 16; FRAMES, the
// number of frames per block, even; CODE, the parts to compute (`fourier._PART_CODES`); HALF, whether tensors are float16;
// TURNED, whether the frames of a frequency are contiguous rather than the frequencies of a frame; WINDOWED, whether
// frames are weighted by a window; CENTRED, whether means are subtracted.

#define THREADS (POINTS / VALUES)  // threads per transform
#define FREQUENCIES (POINTS / 2 + 1)
#define SECOND (THREADS < VALUES ? THREADS : VALUES)  // points per transform in the second pass
#define THIRD (THREADS / SECOND)                      // and in the third
// A gap after every VALUES numbers avoids bank conflicts; with TURNED, threads read across transforms.
#define PLACE(i) ((i) + (i) / VALUES)
#define ROOM (POINTS + THREADS + TURNED)

struct Complex {
    float re, im;
};

__device__ __forceinline__ Complex plus(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }

__device__ __forceinline__ Complex minus(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }

__device__ __forceinline__ Complex times(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// exp(-2 pi i k / 16) for k from 1 to 7.
__device__ __forceinline__ Complex root(int k) {
    const float c1 = 0.923879532511286756f, c2 = 0.707106781186547524f, c3 = 0.382683432365089772f;
    switch (k) {
        case 1: return {c1, -c3};
        case 2: return {c2, -c2};
        case 3: return {c3, -c1};
        case 5: return {-c3, -c1};
        case 6: return {-c2, -c2};
        default: return {-c1, -c3};
    }
}

// Transform COUNT points in registers, by combining the transforms of even and odd points.
template <int COUNT>
struct Small {
    static __device__ __forceinline__ void transform(Complex *v) {
        Complex even[COUNT / 2], odd[COUNT / 2];
#pragma unroll
        for (int k = 0; k < COUNT / 2; k++) {
            even[k] = v[2 * k];
            odd[k] = v[2 * k + 1];
        }
        Small<COUNT / 2>::transform(even);
        Small<COUNT / 2>::transform(odd);
#pragma unroll
        for (int k = 0; k < COUNT / 2; k++) {
            Complex turned = odd[k];
            if (4 * k == COUNT)
                turned = {odd[k].im, -odd[k].re};
            else if (k > 0)
                turned = times(odd[k], root(k * (16 / COUNT)));
            v[k] = plus(even[k], turned);
            v[k + COUNT / 2] = minus(even[k], turned);
        }
    }
};

template <>
struct Small<1> {
    static __device__ __forceinline__ void transform(Complex *) {}
};

// Load the points of a thread for a pass of COUNT points at a time.
template <int COUNT>
__device__ __forceinline__ void load(Complex *v, const float *re, const float *im, int thread) {
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int place = PLACE(thread + (i / COUNT) * THREADS + (i % COUNT) * (POINTS / COUNT));
        v[i] = {re[place], im[place]};
    }
}

// Run one pass: transforms of COUNT points, after passes that completed transforms of DONE points.
template <int COUNT, int DONE>
__device__ __forceinline__ void pass(Complex *v, float *re, float *im, int thread) {
#pragma unroll
    for (int m = 0; m < VALUES / COUNT; m++) {
        const int number = thread + m * THREADS;
        Complex *u = v + m * COUNT;
        if (DONE > 1) {
            float sine, cosine;
            sincospif(-2.0f / (DONE * COUNT) * (number % DONE), &sine, &cosine);
            // Compute each power with few products, because rounding errors accumulate.
            Complex low[4] = {{1.0f, 0.0f}, {cosine, sine}}, high[4] = {{1.0f, 0.0f}};
            low[2] = times(low[1], low[1]);
            low[3] = times(low[2], low[1]);
            high[1] = times(low[2], low[2]);
            high[2] = times(high[1], high[1]);
            high[3] = times(high[2], high[1]);
#pragma unroll
            for (int q = 1; q < COUNT; q++) {
                const Complex w = q < 4 ? low[q] : q % 4 == 0 ? high[q / 4] : times(low[q % 4], high[q / 4]);
                u[q] = times(u[q], w);
            }
        }
        Small<COUNT>::transform(u);
#pragma unroll
        for (int q = 0; q < COUNT; q++) {
            const int place = PLACE((number / DONE) * (DONE * COUNT) + number % DONE + q * DONE);
            re[place] = u[q].re;
            im[place] = u[q].im;
        }
    }
}

__device__ __forceinline__ float wanted(float x) {
#if CODE == 0 || CODE == 2
    // The GPU has an instruction for the binary logarithm, but not for the natural one.
    return __log2f(x) * 0.693147180559945309f;
#else
    return x;
#endif
}

#if HALF
typedef unsigned short Number;
#else
typedef float Number;
#endif

#ifdef __CUDACC__
__device__ __forceinline__ unsigned short rounded(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float widened(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif

// Store a number, and return its stored value, which is rounded if HALF.
__device__ __forceinline__ float keep(Number *place, float x) {
#if HALF
    const Number bits = rounded(x);
    *place = bits;
    return widened(bits);
#else
    *place = x;
    return x;
#endif
}

// X: rows whose starts are `step` numbers apart. T: (windows, parts x channels, frequencies x frames). squares: for each
// block, the sum of squares of the values it wrote.
extern "C" __global__ void __launch_bounds__(FRAMES / 2 * THREADS)
    stft(const float *X, const float *window, const float *floor, const float *mean, Number *T, float *squares,
         int channels, int frames, int hop, int step) {
    __shared__ float re[FRAMES / 2 * ROOM], im[FRAMES / 2 * ROOM];
    const int blocks = (frames + FRAMES - 1) / FRAMES;
    const int row = blockIdx.x / blocks, first = blockIdx.x % blocks * FRAMES, thread = threadIdx.x % THREADS;
    const int pair = threadIdx.x / THREADS, count = frames - first < FRAMES ? frames - first : FRAMES;
    float *own_re = re + pair * ROOM, *own_im = im + pair * ROOM;
    Complex v[VALUES];
    {
        const float *x = X + (long long)row * step + (long long)(first + 2 * pair) * hop;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const int n = thread + i * THREADS;
            v[i].re = 2 * pair < count ? x[n] : 0.0f;
            v[i].im = 2 * pair + 1 < count ? x[n + hop] : 0.0f;
#if WINDOWED
            v[i].re *= window[n];
            v[i].im *= window[n];
#endif
        }
    }
    pass<VALUES, 1>(v, own_re, own_im, thread);
    __syncthreads();
    load<SECOND>(v, own_re, own_im, thread);
    __syncthreads();
    pass<SECOND, VALUES>(v, own_re, own_im, thread);
    __syncthreads();
    if (THIRD > 1) {
        load<THIRD>(v, own_re, own_im, thread);
        __syncthreads();
        pass<THIRD, VALUES * SECOND>(v, own_re, own_im, thread);
        __syncthreads();
    }
    const int parts = CODE <= 1 ? 2 : 1, channel = row % channels;
    const long long size = (long long)FREQUENCIES * frames;
    const float offset = floor[channel];
    Number *target = T + ((long long)(row / channels) * parts * channels + channel) * size;
    float energy = 0.0f;
    for (int e = threadIdx.x; e < FRAMES * FREQUENCIES; e += FRAMES / 2 * THREADS) {
        const int f = TURNED ? e % FRAMES : e / FREQUENCIES, k = TURNED ? e / FRAMES : e % FREQUENCIES;
        if (f >= count) continue;
        const int here = f / 2 * ROOM + PLACE(k), there = f / 2 * ROOM + PLACE((POINTS - k) % POINTS);
        // The even part of the transform belongs to the first frame of the pair, the odd part to the second.
        float a = f % 2 ? 0.5f * (im[here] + im[there]) : 0.5f * (re[here] + re[there]);
        float b = f % 2 ? 0.5f * (re[there] - re[here]) : 0.5f * (im[here] - im[there]);
        const long long place = TURNED ? (long long)k * frames + first + f : (long long)first * FREQUENCIES + e;
        if (CODE >= 2) a = sqrtf(a * a + b * b);
        if (CODE == 0) a = fabsf(a), b = fabsf(b);
        a = wanted(CODE == 0 || CODE == 2 ? a + offset : a);
#if CENTRED
        a -= mean[channel * FREQUENCIES + k];
#endif
        a = keep(target + place, a);
        energy += a * a;
        if (CODE <= 1) {
            b = wanted(CODE == 0 ? b + offset : b);
#if CENTRED
            b -= mean[(channels + channel) * FREQUENCIES + k];
#endif
            b = keep(target + channels * size + place, b);
            energy += b * b;
        }
    }
    // Add in a fixed order, so that sums are reproducible.
    __syncthreads();
    re[threadIdx.x] = energy;
    __syncthreads();
    if (threadIdx.x < 32) {
        energy = 0.0f;
        for (int i = threadIdx.x; i < FRAMES / 2 * THREADS; i += 32) energy += re[i];
        im[threadIdx.x] = energy;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const int sums = FRAMES / 2 * THREADS < 32 ? FRAMES / 2 * THREADS : 32;
        energy = 0.0f;
        for (int i = 0; i < sums; i++) energy += im[i];
        squares[blockIdx.x] = energy;
    }
}
