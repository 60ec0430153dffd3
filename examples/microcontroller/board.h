/* What the example needs of a board: to print, to measure, to stop. See host.c and cortex_m.c. */
#ifndef BOARD_H
#define BOARD_H

void board_start(void);
void board_print(const char *text);
void board_stop(int failed);

/* Instructions (QEMU), cycles (a board) or nanoseconds (a computer) since board_begin_count; returns 0 if there were
   too many to count. */
void board_begin_count(void);
int board_count(unsigned long *count);
extern const char *const board_count_unit;

/* How many windows to measure: where the clock is coarse, many. */
extern const int board_repeats;

#endif
