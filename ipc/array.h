/*
 * array.h - arrays that are as long as they can ever be, and touched as they are needed.
 */
#ifndef ATTND_IPC_ARRAY_H
#define ATTND_IPC_ARRAY_H

#include <stdint.h>

/**
 * attnd_array_new() - @bytes of zeros
 * A large one comes from the kernel, whatever the heap has left: to make it takes as long as to
 * make a small one, and it costs memory where it is touched. Return: NULL without memory.
 */
void *attnd_array_new(uint64_t bytes);

/** attnd_array_free() - on the closer's thread if it is large, and without memory for that at once.
 * @bytes: as it was made. NULL is fine. */
void attnd_array_free(void *array, uint64_t bytes);

#endif
