/*
 * switch_cost.h - what no MPS costs, in words: for the log, attnctl status and attnctl doctor.
 */
#ifndef ATTND_SERVICE_BASE_SWITCH_COST_H
#define ATTND_SERVICE_BASE_SWITCH_COST_H

#include <stddef.h>
#include <stdint.h>

#define ATTND_SWITCH_COST_BYTES 160 /* the longest text has room */
#define ATTND_SWITCH_COST_UNTOLD (-1)

/**
 * attnd_switch_cost_text() - that processes take turns on the GPU, and the price
 * @switch_cost_us: as Status has it; 0: it is absent there; ATTND_SWITCH_COST_UNTOLD:
 *                there is no service to tell
 * @text: [@bytes]; ATTND_SWITCH_COST_BYTES are enough
 * Threads: any. Return: @text.
 */
const char *attnd_switch_cost_text(int64_t switch_cost_us, char *text, size_t bytes);

#endif
