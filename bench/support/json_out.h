/*
 * json_out.h - JSON written a member at a time, indented, strings escaped.
 */
#ifndef ATTND_BENCH_SUPPORT_JSON_OUT_H
#define ATTND_BENCH_SUPPORT_JSON_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_JSON_OUT_DEPTH_MAX 8

/* Errors stay with the stream: ferror() at the end tells. */
struct bench_json_out {
    FILE *file;
    int depth;
    char closing[BENCH_JSON_OUT_DEPTH_MAX];
    bool first; /* nothing in the innermost bracket yet */
};

/** bench_json_out_begin() - open the outermost object; @file borrowed until _end(). */
void bench_json_out_begin(struct bench_json_out *out, FILE *file);
void bench_json_out_end(struct bench_json_out *out);

/* @name NULL: an element of an array. */
void bench_json_out_object(struct bench_json_out *out, const char *name);
void bench_json_out_array(struct bench_json_out *out, const char *name);
/** bench_json_out_close() - the innermost object or array. */
void bench_json_out_close(struct bench_json_out *out);

void bench_json_out_uint(struct bench_json_out *out, const char *name, uint64_t value);
/** bench_json_out_double() - nine significant digits; what is not finite becomes null. */
void bench_json_out_double(struct bench_json_out *out, const char *name, double value);
void bench_json_out_bool(struct bench_json_out *out, const char *name, bool value);
void bench_json_out_string(struct bench_json_out *out, const char *name, const char *value);

#endif
