/* replay_json.c - members by name; one that is missing is 0. */
#include "bench/support/replay_json.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static uint64_t count(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

static void read_side(const json_t *report, const char *key, struct bench_replay_side *side)
{
    const json_t *total = json_object_get(json_object_get(report, key), "total");

    *side = (struct bench_replay_side){
        .requests = count(total, "requests"),
        .prompt_tokens = count(total, "prompt_tokens"),
        .prompt_computed = count(total, "prompt_tokens_computed"),
        .evicted = count(total, "cached_pages_evicted"),
        .steps = count(total, "steps"),
        .mismatches = count(total, "mismatches"),
        .attention_s = json_number_value(json_object_get(total, "attention_s")),
        .pages_s = json_number_value(json_object_get(total, "pages_s"))};
}

int bench_replay_read(const char *path, struct bench_replay_file *file, char *why, size_t why_bytes)
{
    json_error_t error;
    json_t *report = json_load_file(path, JSON_REJECT_DUPLICATES, &error);

    memset(file, 0, sizeof(*file));
    if (!report) {
        snprintf(why, why_bytes, "%s: %s", path, error.text);
        return -1;
    }
    file->engines = count(json_object_get(report, "options"), "engines");
    file->context_max = count(json_object_get(report, "options"), "max_context");
    read_side(report, "cache_service", &file->service);
    read_side(report, "cache_engine", &file->engine);
    json_decref(report);
    if (file->service.requests && file->engine.requests)
        return 0;
    snprintf(why, why_bytes, "%s: it compares no service with engine", path);
    return -1;
}
