/*
 * json.c - a reader that only moves forward: each function takes the place where something should
 * begin and returns the place behind it, or NULL if it is not there.
 */
#include "tests/support/harness/json.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32

static const char *skip_value(const char *at, int depth);

static const char *skip_space(const char *at)
{
    while (at && *at && strchr(" \t\r\n", *at))
        at++;
    return at;
}

/* One character of a string that is no escape: printable ASCII or a whole UTF-8 sequence. */
static const char *skip_character(const char *at)
{
    const unsigned char first = (unsigned char)*at;
    int more = first < 0x80 ? 0 : first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;

    if (first < 0x20 || (first >= 0x80 && first < 0xc2) || first > 0xf4)
        return NULL;
    for (at++; more > 0; more--, at++)
        if (((unsigned char)*at & 0xc0) != 0x80)
            return NULL;
    return at;
}

static const char *skip_string(const char *at)
{
    if (*at++ != '"')
        return NULL;
    while (at && *at != '"') {
        if (*at != '\\') {
            at = skip_character(at);
        } else if (at[1] == 'u') {
            for (int i = 2; i < 6; i++)
                if (!isxdigit((unsigned char)at[i]))
                    return NULL;
            at += 6;
        } else if (at[1] && strchr("\"\\/bfnrt", at[1])) {
            at += 2;
        } else {
            return NULL;
        }
    }
    return at ? at + 1 : NULL;
}

static const char *skip_digits(const char *at)
{
    const char *begin = at;
    while (isdigit((unsigned char)*at))
        at++;
    return at > begin ? at : NULL;
}

static const char *skip_number(const char *at)
{
    if (*at == '-')
        at++;
    if (*at == '0' && isdigit((unsigned char)at[1]))
        return NULL;
    at = skip_digits(at);
    if (at && *at == '.')
        at = skip_digits(at + 1);
    if (at && (*at == 'e' || *at == 'E')) {
        at++;
        at = skip_digits(*at == '+' || *at == '-' ? at + 1 : at);
    }
    return at;
}

/* Members or elements up to @close, behind the opening bracket. */
static const char *skip_list(const char *at, char close, int depth)
{
    at = skip_space(at);
    if (*at == close)
        return at + 1;
    for (;;) {
        if (close == '}') {
            at = skip_string(skip_space(at));
            at = skip_space(at);
            if (!at || *at++ != ':')
                return NULL;
        }
        at = skip_space(skip_value(skip_space(at), depth + 1));
        if (!at || (*at != ',' && *at != close))
            return NULL;
        if (*at++ == close)
            return at;
    }
}

static const char *skip_word(const char *at, const char *word)
{
    size_t length = strlen(word);
    return strncmp(at, word, length) == 0 ? at + length : NULL;
}

static const char *skip_value(const char *at, int depth)
{
    if (!at || depth > DEPTH_MAX)
        return NULL;
    switch (*at) {
    case '{':
        return skip_list(at + 1, '}', depth);
    case '[':
        return skip_list(at + 1, ']', depth);
    case '"':
        return skip_string(at);
    case 't':
        return skip_word(at, "true");
    case 'f':
        return skip_word(at, "false");
    case 'n':
        return skip_word(at, "null");
    default:
        return skip_number(at);
    }
}

int json_valid(const char *text)
{
    const char *end = skip_space(skip_value(skip_space(text), 0));
    return end && *end == '\0';
}

const char *json_member(const char *value, const char *key)
{
    const size_t length = strlen(key);
    const char *at = value && *value == '{' ? skip_space(value + 1) : NULL;

    while (at && *at == '"') {
        const int found = strncmp(at + 1, key, length) == 0 && at[1 + length] == '"';
        at = skip_space(skip_string(at));
        at = at ? skip_space(at + 1) : NULL; /* behind the colon */
        if (found)
            return at;
        at = skip_space(skip_value(at, 0));
        at = at && *at == ',' ? skip_space(at + 1) : NULL;
    }
    return NULL;
}

const char *json_element(const char *value, unsigned index)
{
    const char *at = value && *value == '[' ? skip_space(value + 1) : NULL;

    if (!at || *at == ']')
        return NULL;
    while (at && index-- > 0) {
        at = skip_space(skip_value(at, 0));
        at = at && *at == ',' ? skip_space(at + 1) : NULL;
    }
    return at;
}

double json_number(const char *value, const char *key)
{
    const char *at = json_member(value, key);
    return at && skip_number(at) ? strtod(at, NULL) : (double)NAN;
}

int json_is(const char *value, const char *key, const char *text)
{
    const char *at = json_member(value, key);
    const size_t length = strlen(text);
    return at && *at == '"' && strncmp(at + 1, text, length) == 0 && at[1 + length] == '"';
}
