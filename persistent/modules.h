/*
 * modules.h - files of a directory that a worker loads into its process: who may have written them.
 *
 * Code that a worker loads has its rights. So a file counts only if nobody but root and the
 * worker's own user could have put it there: it, its directory and all that lead there belong to
 * one of the two, and no group and no others may write to them. A directory above in which only
 * owners rename (as /tmp) is no danger, and neither is what the worker opens once and then reads.
 */
#ifndef ATTND_PERSISTENT_MODULES_H
#define ATTND_PERSISTENT_MODULES_H

#include <stddef.h>
#include <stdint.h>

#define ATTND_MODULE_BYTES_MAX (64u << 20)

/**
 * attnd_modules_open() - the directory, checked
 * @path: absolute, without links
 * @why:  receives a clause that says what is wrong, with the path it is wrong of
 *
 * Return: a descriptor, the caller's; -1 with @why.
 */
int attnd_modules_open(const char *path, char *why, size_t why_bytes);

/**
 * attnd_modules_read() - a file of it, checked
 * @directory: of attnd_modules_open()
 * @bytes: receives memory for free(), with the file and a zero behind it
 *
 * Return: 1; 0 there is no such file; -1 with @why.
 */
int attnd_modules_read(int directory, const char *name, void **bytes, char *why, size_t why_bytes);

#endif
