/*
 * table.h - the records of a folder as one Markdown table, for a text.
 */
#ifndef ATTND_BENCH_SUPPORT_TABLE_H
#define ATTND_BENCH_SUPPORT_TABLE_H

#include <stddef.h>
#include <stdio.h>

/**
 * bench_table_print() - every record of @directory, files in the order of their names
 *
 * A figure that several devices have stands in neighbouring lines. Return: 0; -1 with a sentence in
 * @why: a file is not exactly records, or one of uncommitted changes.
 */
int bench_table_print(FILE *out, const char *directory, char *why, size_t why_bytes);

#endif
