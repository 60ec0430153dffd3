/* Everything that a firmware does with a model: the selftest, single windows, and a stream of samples. */

#include <math.h>

#include "board.h"
#include "model.h"

static polyadic_stream stream;
static float window[POLYADIC_CHANNELS][POLYADIC_SAMPLES];
#ifdef MASKED
static polyadic_masked masked;
#endif

static void print_number(const char *before, unsigned long value, const char *after)
{
    char text[24];
    int place = (int)sizeof text - 1;
    text[place] = '\0';
    do {
        text[--place] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    board_print(before);
    board_print(text + place);
    board_print(after);
}

/* Simulate a sensor: a triangle wave with a different period on every channel. */
static float read_sensor(int channel, unsigned long now)
{
    const unsigned long period = 8 + 3 * (unsigned long)channel;
    const unsigned long phase = now % (2 * period);
    return (float)(phase < period ? phase : 2 * period - phase) / (float)period - 0.5f;
}

static void print_result(const float *result)
{
#ifdef POLYADIC_CLASSES
    int k, best = 0;
    for (k = 1; k < POLYADIC_CLASSES; k++)
        if (result[k] > result[best])
            best = k;
    board_print(polyadic_classes[best]);
    print_number(", ", (unsigned long)(100.0f * result[best] + 0.5f), " %\n");
#else
    print_number("", POLYADIC_FEATURES, " features\n");
    (void)result;
#endif
}

int main(void)
{
#ifdef POLYADIC_CLASSES
    float result[POLYADIC_CLASSES];
#else
    float result[POLYADIC_FEATURES];
#endif
    float sample[POLYADIC_CHANNELS];
    unsigned long now, count;
    int channel, repeat, failed;

    board_start();
    failed = polyadic_selftest();
    if (failed)
        print_number("selftest: ", (unsigned long)failed, " values differ\n");
    else
        board_print("selftest: passed\n");

    for (channel = 0; channel < POLYADIC_CHANNELS; channel++)
        for (now = 0; now < POLYADIC_SAMPLES; now++)
            window[channel][now] = read_sensor(channel, now);
    board_begin_count();
    for (repeat = 0; repeat < board_repeats; repeat++)
#ifdef POLYADIC_CLASSES
        polyadic_predict(POLYADIC_WINDOW(window), result, &stream.scratch);
#else
        polyadic_features(POLYADIC_WINDOW(window), result, &stream.scratch);
#endif
    if (board_count(&count))
        print_number("one window: ", count / (unsigned long)board_repeats, board_count_unit);
    else
        board_print("one window: too many to count\n");

#ifdef MASKED
    /* The first sensor fails. */
    for (now = 0; now < POLYADIC_SAMPLES; now++)
        window[0][now] = NAN;
    board_begin_count();
    for (repeat = 0; repeat < board_repeats; repeat++)
#ifdef POLYADIC_CLASSES
        polyadic_predict_masked(window, result, &stream.scratch, &masked);
#else
        polyadic_features_masked(window, result, &stream.scratch, &masked);
#endif
    if (board_count(&count))
        print_number("one window without the first channel: ", count / (unsigned long)board_repeats, board_count_unit);
    else
        board_print("one window without the first channel: too many to count\n");
    board_print("without the first channel: ");
    print_result(result);
#endif

    for (now = 0; now < POLYADIC_SAMPLES + 2 * POLYADIC_STRIDE; now++) {
        for (channel = 0; channel < POLYADIC_CHANNELS; channel++)
            sample[channel] = read_sensor(channel, now);
        if (polyadic_push(&stream, sample, result) > 0) {
            print_number("sample ", now + 1, ": ");
            print_result(result);
        }
    }
    board_stop(failed);
    return failed != 0;
}
