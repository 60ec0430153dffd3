/* Start-up code, output and a counter for a Cortex-M, instead of vendor files.

   With SEMIHOSTING defined, the code is for QEMU (board mps2-an386), and output uses semihosting. QEMU runs with
   -icount shift=3, so that an instruction takes 8 ns of virtual time; SysTick counts at 25 MHz (40 ns), so one tick is
   five instructions. Without SEMIHOSTING, there is no output unless you define board_print, and SysTick counts
   processor cycles. Do not define it on hardware: without a debugger, a processor locks up at a semihosting
   instruction. */

#include "board.h"

extern unsigned long _data_in_flash, _data_start, _data_end, _bss_start, _bss_end, _stack_top;
int main(void);
void reset(void);

#define SYSTICK_CONTROL (*(volatile unsigned long *)0xE000E010)
#define SYSTICK_RELOAD (*(volatile unsigned long *)0xE000E014)
#define SYSTICK_VALUE (*(volatile unsigned long *)0xE000E018)
#define COPROCESSORS (*(volatile unsigned long *)0xE000ED88)
#define SYSTICK_HAS_WRAPPED (1ul << 16)
#ifndef LONGEST
#define LONGEST 0xFFFFFFul
#endif

const int board_repeats = 1;

#ifdef SEMIHOSTING
#define COUNTS_PER_TICK 5
const char *const board_count_unit = " instructions\n";

static void semihost(long operation, const void *argument)
{
    register long r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void board_print(const char *text)
{
    semihost(0x04, text);
}

void board_stop(int failed)
{
    semihost(0x18, (const void *)(failed ? 0x20023ul : 0x20026ul)); /* run-time error, or application exit */
    for (;;)
        ;
}
#else
#define COUNTS_PER_TICK 1
const char *const board_count_unit = " cycles\n";

/* To override this, define board_print in another file, for example one that writes to the board's UART. */
__attribute__((weak)) void board_print(const char *text)
{
    (void)text;
}

__attribute__((weak)) void board_stop(int failed)
{
    (void)failed;
    for (;;)
        ;
}
#endif

void board_start(void)
{
    SYSTICK_RELOAD = LONGEST;
    SYSTICK_VALUE = 0;
    SYSTICK_CONTROL = 5;
}

static unsigned long begun;

void board_begin_count(void)
{
    SYSTICK_VALUE = 0; /* also clears the wrap flag */
    while (SYSTICK_VALUE == 0)
        ; /* wait until the next tick reloads it */
    begun = SYSTICK_VALUE;
}

int board_count(unsigned long *count)
{
    const unsigned long now = SYSTICK_VALUE;
    *count = COUNTS_PER_TICK * (begun - now);
    return !(SYSTICK_CONTROL & SYSTICK_HAS_WRAPPED);
}

static void stop_at_fault(void)
{
    board_print("the processor stopped because of a fault\n");
    board_stop(1);
}

void reset(void)
{
    unsigned long *from = &_data_in_flash, *to;
#ifdef __ARM_FP
    COPROCESSORS |= 0xFul << 20; /* enable the floating-point unit */
    __asm__ volatile("dsb\n isb");
#endif
    for (to = &_data_start; to < &_data_end;)
        *to++ = *from++;
    for (to = &_bss_start; to < &_bss_end;)
        *to++ = 0;
    main();
    board_stop(1);
}

/* The vector table: initial stack pointer, and handlers for reset and faults. */
__attribute__((section(".vectors"), used)) static const struct {
    unsigned long *stack;
    void (*handlers[15])(void);
} vectors = {
    &_stack_top,
    {reset, stop_at_fault, stop_at_fault, stop_at_fault, stop_at_fault, stop_at_fault},
};
