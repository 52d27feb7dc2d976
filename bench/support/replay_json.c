/* replay_json.c - members by name, the rest skipped. */
#include "bench/support/replay_json.h"
#include "bench/support/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (4u << 20)
#define KEY_BYTES 64

/* A value that belongs to a key, whole or with a fraction; NULL: nobody asks for it. */
struct member {
    const char *key;
    uint64_t *whole;
    double *fraction;
};

static void take(struct bench_json *json, const char *key, const struct member *members,
                 size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(key, members[i].key) != 0)
            continue;
        if (members[i].whole)
            bench_json_uint(json, UINT64_MAX, members[i].whole);
        else
            bench_json_double(json, members[i].fraction);
        return;
    }
    bench_json_skip(json);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void read_total(struct bench_json *json, struct bench_replay_side *side)
{
    const struct member members[] = {
        {"requests", &side->requests, NULL},
        {"prompt_tokens", &side->prompt_tokens, NULL},
        {"prompt_tokens_computed", &side->prompt_computed, NULL},
        {"cached_pages_evicted", &side->evicted, NULL},
        {"steps", &side->steps, NULL},
        {"mismatches", &side->mismatches, NULL},
        {"attention_s", NULL, &side->attention_s},
        {"pages_s", NULL, &side->pages_s},
    };
    char key[KEY_BYTES];

    if (!bench_json_object(json))
        return;
    while (bench_json_key(json, key, sizeof(key)) > 0)
        take(json, key, members, COUNT(members));
}

static void read_side(struct bench_json *json, struct bench_replay_side *side)
{
    char key[KEY_BYTES];

    if (!bench_json_object(json))
        return;
    while (bench_json_key(json, key, sizeof(key)) > 0)
        if (strcmp(key, "total") == 0)
            read_total(json, side);
        else
            bench_json_skip(json);
}

static void read_options(struct bench_json *json, struct bench_replay_file *file)
{
    const struct member members[] = {{"engines", &file->engines, NULL},
                                     {"max_context", &file->context_max, NULL}};
    char key[KEY_BYTES];

    if (!bench_json_object(json))
        return;
    while (bench_json_key(json, key, sizeof(key)) > 0)
        take(json, key, members, COUNT(members));
}

static void read_file(struct bench_json *json, struct bench_replay_file *file)
{
    char key[KEY_BYTES];

    if (!bench_json_object(json))
        return;
    while (bench_json_key(json, key, sizeof(key)) > 0)
        if (strcmp(key, "options") == 0)
            read_options(json, file);
        else if (strcmp(key, "cache_service") == 0)
            read_side(json, &file->service);
        else if (strcmp(key, "cache_engine") == 0)
            read_side(json, &file->engine);
        else
            bench_json_skip(json);
}

int bench_replay_read(const char *path, struct bench_replay_file *file, char *why, size_t why_bytes)
{
    FILE *from = fopen(path, "re");
    char *text = from ? malloc(FILE_BYTES_MAX) : NULL;
    struct bench_json json = {.error = NULL};

    memset(file, 0, sizeof(*file));
    if (!text) {
        snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
    } else {
        bench_json_init(&json, text, fread(text, 1, FILE_BYTES_MAX, from));
        read_file(&json, file);
        if (!bench_json_end(&json))
            snprintf(why, why_bytes, "%s: %s", path, json.error ? json.error : "more than JSON");
        else if (!file->service.requests || !file->engine.requests)
            snprintf(why, why_bytes, "%s: it compares no service with engine", path);
        else
            why[0] = 0;
    }
    free(text);
    if (from)
        fclose(from);
    return why[0] ? -1 : 0;
}
