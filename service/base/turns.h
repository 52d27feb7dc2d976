/*
 * turns.h - what no MPS costs, in words: for the log, attnctl status and attnctl doctor.
 */
#ifndef ATTND_SERVICE_BASE_TURNS_H
#define ATTND_SERVICE_BASE_TURNS_H

#include <stddef.h>
#include <stdint.h>

#define ATTND_TURNS_BYTES 160 /* the longest text has room */
#define ATTND_TURNS_UNTOLD (-1)

/**
 * attnd_turns_text() - that processes take turns on the GPU, and the price
 * @hand_over_us: as attnd_queue_head has it; 0: no worker has measured it; ATTND_TURNS_UNTOLD:
 *                there is no service to tell
 * @text: [@bytes]; ATTND_TURNS_BYTES are enough
 * Threads: any. Return: @text.
 */
const char *attnd_turns_text(int64_t hand_over_us, char *text, size_t bytes);

#endif
