/*
 * json.h - a strict pull reader for the JSON this project reads: traces and records.
 *
 * The caller asks for what must come next; anything else is an error with a reason. Nothing is
 * allocated, nothing beyond `end` is read, nesting is bounded. After an error every call fails, so
 * a caller may check once at the end.
 */
#ifndef ATTND_BENCH_SUPPORT_JSON_H
#define ATTND_BENCH_SUPPORT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_JSON_DEPTH_MAX 8u

struct bench_json {
    const char *at, *end;
    const char *error; /* NULL, or what was expected; static storage */
    bool fresh;        /* just inside a bracket: no comma yet */
};

/** bench_json_init() - read @bytes of @text; borrowed, need not be terminated. */
void bench_json_init(struct bench_json *json, const char *text, size_t bytes);

/** bench_json_fail() - record the first error. Return: false. */
bool bench_json_fail(struct bench_json *json, const char *error);

bool bench_json_object(struct bench_json *json);
/** bench_json_key() - the next key of an object. Return: 1; 0 after '}' was taken; -1 error. */
int bench_json_key(struct bench_json *json, char *key, size_t key_bytes);

bool bench_json_array(struct bench_json *json);
/** bench_json_element() - Return: 1 an element follows; 0 after ']' was taken; -1 error. */
int bench_json_element(struct bench_json *json);

/** bench_json_uint() - digits only: no sign, fraction or exponent; at most @max. */
bool bench_json_uint(struct bench_json *json, uint64_t max, uint64_t *value);
bool bench_json_double(struct bench_json *json, double *value);
/** bench_json_string() - too long for @text_bytes is an error, as is \u beyond ASCII. */
bool bench_json_string(struct bench_json *json, char *text, size_t text_bytes);
bool bench_json_bool(struct bench_json *json, bool *value);

/** bench_json_skip() - any one value. */
bool bench_json_skip(struct bench_json *json);

/** bench_json_end() - true if nothing but white space is left and there was no error. */
bool bench_json_end(struct bench_json *json);

#endif
