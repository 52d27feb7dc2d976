/* trace_line.c - one line of either format, strictly: every field once, within its limits, and as
 * many hash ids as the prompt has blocks. A trace that was cut or edited is refused here and not
 * discovered as a strange figure later. */
#include "bench/replay/trace.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
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

/* A whole number that JSON writes without fraction and exponent, from 0 to @most. */
static bool read_count(const json_t *value, uint64_t most, uint64_t *count)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 0 || (uint64_t)number > most)
        return false;
    *count = (uint64_t)number;
    return true;
}

static bool read_tokens(const json_t *value, uint32_t *tokens)
{
    uint64_t count;

    if (!read_count(value, REPLAY_TOKENS_MAX, &count))
        return false;
    *tokens = (uint32_t)count;
    return true;
}

static const char *read_ids(const json_t *list, struct replay_line *line)
{
    if (!json_is_array(list))
        return "hash_ids is no list";
    if (json_array_size(list) > line->ids_room)
        return "too many hash_ids";
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_count(json_array_get(list, i), INT64_MAX, &line->ids[i]))
            return "a hash id is not a whole number";
    line->ids_count = (uint32_t)json_array_size(list);
    return NULL;
}

/* Newer traces may have more members. */
static const char *read_members(const json_t *object, struct replay_line *line)
{
    const json_t *timestamp = json_object_get(object, "timestamp");
    double ms = json_number_value(timestamp);
    const char *wrong;

    if (!json_is_object(object))
        return "the line is no object";
    if (!json_is_number(timestamp) || !(ms >= 0 && ms <= ARRIVAL_MS_MAX))
        return "timestamp is not a time in milliseconds";
    line->arrival_ns = (uint64_t)(ms * 1e6);
    if (!read_tokens(json_object_get(object, "input_length"), &line->input_tokens))
        return "input_length is not a number of tokens";
    if (!read_tokens(json_object_get(object, "output_length"), &line->output_tokens))
        return "output_length is not a number of tokens";
    wrong = read_ids(json_object_get(object, "hash_ids"), line);
    if (wrong)
        return wrong;
    if (line->ids_count != (line->input_tokens + REPLAY_BLOCK_TOKENS - 1) / REPLAY_BLOCK_TOKENS)
        return "the number of hash_ids is not input_length / 512, rounded up";
    return check_lengths(line);
}

const char *replay_line_json(const char *text, size_t bytes, struct replay_line *line)
{
    json_error_t error;
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    const char *wrong;

    line->ids_count = 0;
    if (!object) {
        snprintf(line->why, sizeof(line->why), "%s", error.text);
        return line->why;
    }
    wrong = read_members(object, line);
    json_decref(object);
    return wrong;
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
