/* trace_line.c - one line of either format, strictly: every field once, within its limits, and as
 * many hash ids as the prompt has blocks. A trace that was cut or edited is refused here and not
 * discovered as a strange figure later. */
#include "bench/replay/trace.h"
#include "bench/support/json.h"

#include <string.h>

#define ARRIVAL_MS_MAX 4e12 /* a century and a bit; keeps nanoseconds within 64 bits */

static const char csv_header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

int replay_line_is_csv_header(const char *text, size_t bytes)
{
    return bytes == sizeof(csv_header) - 1 && !memcmp(text, csv_header, bytes);
}

static const char *check_lengths(const struct replay_line *line)
{
    if (!line->input_tokens)
        return "a prompt of no tokens";
    return NULL;
}

/* ---- Mooncake ---- */

enum json_field { TIMESTAMP = 1, INPUT = 2, OUTPUT = 4, IDS = 8, ALL = 15 };

static enum json_field field_named(const char *key)
{
    static const struct {
        const char *name;
        enum json_field field;
    } fields[] = {{"timestamp", TIMESTAMP},
                  {"input_length", INPUT},
                  {"output_length", OUTPUT},
                  {"hash_ids", IDS}};

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (!strcmp(key, fields[i].name))
            return fields[i].field;
    return 0;
}

static bool read_tokens(struct bench_json *json, uint32_t *tokens)
{
    uint64_t value;

    if (!bench_json_uint(json, REPLAY_TOKENS_MAX, &value))
        return false;
    *tokens = (uint32_t)value;
    return true;
}

static bool read_timestamp(struct bench_json *json, uint64_t *arrival_ns)
{
    double ms;

    if (!bench_json_double(json, &ms))
        return false;
    if (!(ms >= 0 && ms <= ARRIVAL_MS_MAX))
        return bench_json_fail(json, "a timestamp out of range");
    *arrival_ns = (uint64_t)(ms * 1e6);
    return true;
}

static bool read_ids(struct bench_json *json, struct replay_line *line)
{
    int more;

    bench_json_array(json);
    while ((more = bench_json_element(json)) > 0) {
        if (line->ids_count == line->ids_room)
            return bench_json_fail(json, "too many hash_ids");
        if (!bench_json_uint(json, UINT64_MAX >> 1, &line->ids[line->ids_count++]))
            return false;
    }
    return more == 0;
}

static bool read_field(struct bench_json *json, enum json_field field, struct replay_line *line)
{
    switch (field) {
    case TIMESTAMP:
        return read_timestamp(json, &line->arrival_ns);
    case INPUT:
        return read_tokens(json, &line->input_tokens);
    case OUTPUT:
        return read_tokens(json, &line->output_tokens);
    case IDS:
        return read_ids(json, line);
    default: /* newer traces may say more */
        return bench_json_skip(json);
    }
}

const char *replay_line_json(const char *text, size_t bytes, struct replay_line *line)
{
    struct bench_json json;
    char key[64];
    unsigned seen = 0;
    int more;

    line->ids_count = 0;
    bench_json_init(&json, text, bytes);
    bench_json_object(&json);
    while ((more = bench_json_key(&json, key, sizeof(key))) > 0) {
        enum json_field field = field_named(key);

        if (seen & field)
            return "a field appears twice";
        seen |= field;
        if (!read_field(&json, field, line))
            return json.error;
    }
    if (more < 0 || !bench_json_end(&json))
        return json.error;
    if (seen != ALL)
        return "timestamp, input_length, output_length or hash_ids is missing";
    if (line->ids_count != (line->input_tokens + REPLAY_BLOCK_TOKENS - 1) / REPLAY_BLOCK_TOKENS)
        return "the number of hash_ids is not input_length / 512, rounded up";
    return check_lengths(line);
}

/* ---- Azure ---- */

struct cursor {
    const char *at, *end;
};

/* At most @digits_max decimal digits. Return: how many there were. */
static uint32_t take_digits(struct cursor *c, uint32_t digits_max, uint64_t *value)
{
    uint32_t digits = 0;

    *value = 0;
    while (digits < digits_max && c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        *value = *value * 10 + (uint64_t)(*c->at++ - '0');
        digits++;
    }
    return digits;
}

static bool take_char(struct cursor *c, char wanted)
{
    if (c->at >= c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* Exactly @digits digits, a value in low..high, and the character that follows. */
static bool take_part(struct cursor *c, uint32_t digits, uint64_t low, uint64_t high, char then,
                      uint64_t *value)
{
    if (take_digits(c, digits, value) != digits || *value < low || *value > high)
        return false;
    return !then || take_char(c, then);
}

/* Days since 1970-01-01 in the Gregorian calendar: years begin in March, so that the leap day is
 * the last of its year and months have a regular length. */
static uint64_t days_since_epoch(uint64_t year, uint64_t month, uint64_t day)
{
    uint64_t y = month > 2 ? year : year - 1;
    uint64_t month_from_march = (month + 9) % 12;

    return 365 * y + y / 4 - y / 100 + y / 400 + (153 * month_from_march + 2) / 5 + day - 1 -
           719468;
}

static bool take_fraction(struct cursor *c, uint64_t *ns)
{
    uint32_t digits;

    *ns = 0;
    if (!take_char(c, '.'))
        return true;
    digits = take_digits(c, 9, ns);
    if (!digits)
        return false;
    while (digits++ < 9)
        *ns *= 10;
    return true;
}

/* 2023-11-16 18:15:46.6805900 */
static bool take_time(struct cursor *c, uint64_t *time_ns)
{
    uint64_t year, month, day, hour, minute, second, ns;

    if (!take_part(c, 4, 1970, 2200, '-', &year) || !take_part(c, 2, 1, 12, '-', &month) ||
        !take_part(c, 2, 1, 31, ' ', &day) || !take_part(c, 2, 0, 23, ':', &hour) ||
        !take_part(c, 2, 0, 59, ':', &minute) || !take_part(c, 2, 0, 60, 0, &second) ||
        !take_fraction(c, &ns))
        return false;
    *time_ns = (((days_since_epoch(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) *
                   1000000000u +
               ns;
    return true;
}

static bool take_tokens(struct cursor *c, uint32_t *tokens)
{
    uint64_t value;

    if (!take_digits(c, 9, &value) || value > REPLAY_TOKENS_MAX)
        return false;
    *tokens = (uint32_t)value;
    return true;
}

const char *replay_line_csv(const char *text, size_t bytes, struct replay_line *line)
{
    struct cursor c = {.at = text, .end = text + bytes};

    line->ids_count = 0;
    if (!take_time(&c, &line->arrival_ns) || !take_char(&c, ','))
        return "expected a time as 2023-11-16 18:15:46.6805900 and a comma";
    if (!take_tokens(&c, &line->input_tokens) || !take_char(&c, ','))
        return "ContextTokens is not a number of tokens";
    if (!take_tokens(&c, &line->output_tokens))
        return "GeneratedTokens is not a number of tokens";
    if (c.at != c.end)
        return "something follows GeneratedTokens";
    return check_lengths(line);
}
