/* One frame of a short-time Fourier transform, for `polyadic.spectral.STFT`: C99, float, no memory allocation.

   A real frame of even length is transformed as a complex one of half the length. Stages have radix 4 and 2, and any
   other radix if the length requires it, so every length works, and lengths with small factors are fast. */

#if POLYADIC_N_FFT % 2 == 0
#define POLYADIC_COMPLEX (POLYADIC_N_FFT / 2)
#else
#define POLYADIC_COMPLEX POLYADIC_N_FFT
#endif

/* exp(-2 pi i k / N_FFT), 0 <= k < N_FFT; for even lengths the table has the first half, and the second is its negative */
static void polyadic_root(int k, float *re, float *im)
{
#if POLYADIC_N_FFT % 2 == 0
    if (k >= POLYADIC_N_FFT / 2) {
        *re = -polyadic_twiddle[k - POLYADIC_N_FFT / 2][0];
        *im = -polyadic_twiddle[k - POLYADIC_N_FFT / 2][1];
        return;
    }
#endif
    *re = polyadic_twiddle[k][0];
    *im = polyadic_twiddle[k][1];
}

#if POLYADIC_HAS_RADIX_4
static void polyadic_radix_4(const float *x, float *y, int length, int stride)
{
    const int quarter = length / 4, step = 2 * stride * quarter, turn = stride * (POLYADIC_N_FFT / POLYADIC_COMPLEX);
    int k, q;
    for (k = 0; k < quarter; k++) {
        float c1, s1, c2, s2, c3, s3;
        const float *in = x + 2 * stride * k;
        float *out = y + 8 * stride * k;
        polyadic_root(k * turn, &c1, &s1);
        polyadic_root(2 * k * turn, &c2, &s2);
        polyadic_root(3 * k * turn, &c3, &s3);
        for (q = 0; q < 2 * stride; q += 2) {
            const float ar = in[q], ai = in[q + 1];
            const float br = in[q + step], bi = in[q + step + 1];
            const float cr = in[q + 2 * step], ci = in[q + 2 * step + 1];
            const float dr = in[q + 3 * step], di = in[q + 3 * step + 1];
            const float er = ar + cr, ei = ai + ci, fr = ar - cr, fi = ai - ci;
            const float gr = br + dr, gi = bi + di, hr = br - dr, hi = bi - di;
            const float ur = fr + hi, ui = fi - hr, vr = er - gr, vi = ei - gi, wr = fr - hi, wi = fi + hr;
            out[q] = er + gr;
            out[q + 1] = ei + gi;
            out[q + 2 * stride] = ur * c1 - ui * s1;
            out[q + 2 * stride + 1] = ur * s1 + ui * c1;
            out[q + 4 * stride] = vr * c2 - vi * s2;
            out[q + 4 * stride + 1] = vr * s2 + vi * c2;
            out[q + 6 * stride] = wr * c3 - wi * s3;
            out[q + 6 * stride + 1] = wr * s3 + wi * c3;
        }
    }
}
#endif

#if POLYADIC_HAS_RADIX_2
static void polyadic_radix_2(const float *x, float *y, int length, int stride)
{
    const int half = length / 2, step = 2 * stride * half, turn = stride * (POLYADIC_N_FFT / POLYADIC_COMPLEX);
    int k, q;
    for (k = 0; k < half; k++) {
        float c, s;
        const float *in = x + 2 * stride * k;
        float *out = y + 4 * stride * k;
        polyadic_root(k * turn, &c, &s);
        for (q = 0; q < 2 * stride; q += 2) {
            const float ar = in[q], ai = in[q + 1], br = in[q + step], bi = in[q + step + 1];
            const float ur = ar - br, ui = ai - bi;
            out[q] = ar + br;
            out[q + 1] = ai + bi;
            out[q + 2 * stride] = ur * c - ui * s;
            out[q + 2 * stride + 1] = ur * s + ui * c;
        }
    }
}
#endif

#if POLYADIC_HAS_OTHER_RADIX
static void polyadic_any_radix(const float *x, float *y, int radix, int length, int stride)
{
    const int part = length / radix, turn = stride * (POLYADIC_N_FFT / POLYADIC_COMPLEX);
    int k, q, j, l;
    for (k = 0; k < part; k++)
        for (q = 0; q < stride; q++)
            for (j = 0; j < radix; j++) {
                float re = 0.0f, im = 0.0f, c, s;
                float *out = y + 2 * (q + stride * (radix * k + j));
                int place = 0; /* j * l modulo radix */
                for (l = 0; l < radix; l++) {
                    const float *in = x + 2 * (q + stride * (k + l * part));
                    polyadic_root(place * (POLYADIC_N_FFT / radix), &c, &s);
                    re += in[0] * c - in[1] * s;
                    im += in[0] * s + in[1] * c;
                    place += j;
                    if (place >= radix)
                        place -= radix;
                }
                polyadic_root(j * k * turn, &c, &s);
                out[0] = re * c - im * s;
                out[1] = re * s + im * c;
            }
}
#endif

/* Transform complex x by Stockham's algorithm; return the result, which is in x or in y. */
static const float *polyadic_transform(float *x, float *y)
{
    int stage, length = POLYADIC_COMPLEX, stride = 1;
    for (stage = 0; stage < POLYADIC_STAGES; stage++) {
        const int radix = polyadic_radix[stage];
        float *other = x;
#if POLYADIC_HAS_RADIX_4
        if (radix == 4)
            polyadic_radix_4(x, y, length, stride);
#endif
#if POLYADIC_HAS_RADIX_2
        if (radix == 2)
            polyadic_radix_2(x, y, length, stride);
#endif
#if POLYADIC_HAS_OTHER_RADIX
        if (radix != 2 && radix != 4)
            polyadic_any_radix(x, y, radix, length, stride);
#endif
        x = y;
        y = other;
        length /= radix;
        stride *= radix;
    }
    return x;
}

/* Write the parts of one complex coefficient to the tensor. Frames are transformed without the level of their channel,
   which may be much larger than the signal: its transform, that of the taper, is added here. */
static void polyadic_parts(float re, float im, int channel, int bin, float (*tensor)[POLYADIC_COLUMNS])
{
    if (bin < POLYADIC_TAPER_BINS)
        re += polyadic_centre[channel] * polyadic_taper_spectrum[bin];
#if POLYADIC_AMPLITUDE
    const float amplitude = sqrtf(re * re + im * im);
#if POLYADIC_LOGARITHM
    tensor[channel][bin] = logf(amplitude + polyadic_floor[channel]);
#else
    tensor[channel][bin] = amplitude;
#endif
#elif POLYADIC_LOGARITHM
    tensor[channel][bin] = logf(fabsf(re) + polyadic_floor[channel]);
    tensor[POLYADIC_CHANNELS + channel][bin] = logf(fabsf(im) + polyadic_floor[channel]);
#else
    tensor[channel][bin] = re;
    tensor[POLYADIC_CHANNELS + channel][bin] = im;
#endif
}

/* Write the spectrum of one frame of one channel to the tensor. */
static void polyadic_spectrum(const float *z, int channel, float (*tensor)[POLYADIC_COLUMNS])
{
    int k;
#if POLYADIC_N_FFT % 2 == 0
    polyadic_parts(z[0] + z[1], 0.0f, channel, 0, tensor);
    polyadic_parts(z[0] - z[1], 0.0f, channel, POLYADIC_COMPLEX, tensor);
    for (k = 1; k < POLYADIC_COMPLEX; k++) {
        const float *a = z + 2 * k, *b = z + 2 * (POLYADIC_COMPLEX - k);
        const float er = 0.5f * (a[0] + b[0]), ei = 0.5f * (a[1] - b[1]);
        const float odd_r = 0.5f * (a[1] + b[1]), odd_i = -0.5f * (a[0] - b[0]);
        const float c = polyadic_twiddle[k][0], s = polyadic_twiddle[k][1];
        polyadic_parts(er + odd_r * c - odd_i * s, ei + odd_r * s + odd_i * c, channel, k, tensor);
    }
#else
    polyadic_parts(z[0], 0.0f, channel, 0, tensor);
    for (k = 1; k < POLYADIC_COLUMNS; k++)
        polyadic_parts(z[2 * k], z[2 * k + 1], channel, k, tensor);
#endif
}

static void polyadic_frame(const float (*window)[POLYADIC_SAMPLES], int start, int frame,
                           float (*tensor)[POLYADIC_COLUMNS], float *work)
{
    int channel, n;
    for (channel = 0; channel < POLYADIC_CHANNELS; channel++) {
        int place = start + frame * POLYADIC_HOP;
        if (place >= POLYADIC_SAMPLES)
            place -= POLYADIC_SAMPLES;
        for (n = 0; n < POLYADIC_N_FFT; n++) {
            /* The taper is symmetric about N_FFT / 2. */
            const float weight = polyadic_taper[2 * n <= POLYADIC_N_FFT ? n : POLYADIC_N_FFT - n];
            const float value = (window[channel][place] - polyadic_centre[channel]) * weight;
#if POLYADIC_N_FFT % 2 == 0
            work[n] = value;
#else
            work[2 * n] = value;
            work[2 * n + 1] = 0.0f;
#endif
            if (++place == POLYADIC_SAMPLES)
                place = 0;
        }
        polyadic_spectrum(polyadic_transform(work, work + 2 * POLYADIC_COMPLEX), channel, tensor);
    }
}

#ifdef POLYADIC_MASKED_BYTES
/* Return whether a frame of a channel is observed: the samples that it lacks have a share of its energy of at most
   1 / LOST_SHARE. */
static int polyadic_observed(const unsigned char *present, int frame)
{
    float lost = 0.0f, all = 0.0f;
    int n;
    for (n = 0; n < POLYADIC_N_FFT; n++) {
        const float weight = polyadic_taper[2 * n <= POLYADIC_N_FFT ? n : POLYADIC_N_FFT - n];
        all += weight * weight;
        if (!POLYADIC_BIT(present, frame * POLYADIC_HOP + n))
            lost += weight * weight;
    }
    return POLYADIC_LOST_SHARE * lost <= all;
}
#endif
