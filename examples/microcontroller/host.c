/* Board functions for running the example on a computer. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "board.h"

const char *const board_count_unit = " ns on this computer\n";
const int board_repeats = 1000;

void board_start(void)
{
}

void board_print(const char *text)
{
    fputs(text, stdout);
}

void board_stop(int failed)
{
    exit(failed ? EXIT_FAILURE : EXIT_SUCCESS);
}

static clock_t begun;

void board_begin_count(void)
{
    begun = clock();
}

int board_count(unsigned long *count)
{
    *count = (unsigned long)(1e9 * (double)(clock() - begun) / CLOCKS_PER_SEC);
    return 1;
}
