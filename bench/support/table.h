/*
 * table.h - the records of a folder as Markdown tables, for a text.
 */
#ifndef ATTND_BENCH_SUPPORT_TABLE_H
#define ATTND_BENCH_SUPPORT_TABLE_H

#include <stddef.h>
#include <stdio.h>

/**
 * bench_table_print() - the records of @directory, files in the order of their names
 *
 * Each device and processor has a table of its own. Left out are values below zero, and figures of
 * builds that are more than a day older than the newest of the same table. Return: 0; -1 with a
 * sentence in
 * @why: a file is not exactly records, or one of uncommitted changes.
 */
int bench_table_print(FILE *out, const char *directory, char *why, size_t why_bytes);

#endif
