/*
 * hand_over.h - what no MPS costs, in words: for the log, attnctl status and attnctl doctor.
 */
#ifndef ATTND_SERVICE_BASE_HAND_OVER_H
#define ATTND_SERVICE_BASE_HAND_OVER_H

#include <stddef.h>
#include <stdint.h>

#define ATTND_HAND_OVER_BYTES 160 /* the longest text has room */
#define ATTND_HAND_OVER_UNTOLD (-1)

/**
 * attnd_hand_over_text() - that processes take turns on the GPU, and the price
 * @hand_over_us: as Status has it; 0: it is absent there; ATTND_HAND_OVER_UNTOLD:
 *                there is no service to tell
 * @text: [@bytes]; ATTND_HAND_OVER_BYTES are enough
 * Threads: any. Return: @text.
 */
const char *attnd_hand_over_text(int64_t hand_over_us, char *text, size_t bytes);

#endif
