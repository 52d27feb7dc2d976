/* json.c - a reader that knows what it wants. It keeps one position and one flag (are we right
 * behind an opening bracket, so that no comma is due?), because after a nested value its parent is
 * never fresh again. */
#include "bench/support/json.h"

#include <stdlib.h>
#include <string.h>

void bench_json_init(struct bench_json *json, const char *text, size_t bytes)
{
    *json = (struct bench_json){.at = text, .end = text + bytes};
}

bool bench_json_fail(struct bench_json *json, const char *error)
{
    if (!json->error)
        json->error = error;
    return false;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The next character that is not white space, or 0 at the end and after an error. */
static char look(struct bench_json *json)
{
    if (json->error)
        return 0;
    while (json->at < json->end && is_space(*json->at))
        json->at++;
    return json->at < json->end ? *json->at : 0;
}

static bool take(struct bench_json *json, char wanted, const char *error)
{
    if (look(json) != wanted)
        return bench_json_fail(json, error);
    json->at++;
    return true;
}

static bool open_bracket(struct bench_json *json, char bracket, const char *error)
{
    json->fresh = true;
    return take(json, bracket, error);
}

bool bench_json_object(struct bench_json *json)
{
    return open_bracket(json, '{', "expected an object");
}

bool bench_json_array(struct bench_json *json)
{
    return open_bracket(json, '[', "expected an array");
}

/* Past the comma that separates from the element before, or past the bracket that closes. */
static int next_member(struct bench_json *json, char closing)
{
    bool fresh = json->fresh;

    json->fresh = false;
    if (look(json) == closing) {
        json->at++;
        return 0;
    }
    if (!fresh && !take(json, ',', "expected ',' or a closing bracket"))
        return -1;
    return json->error ? -1 : 1;
}

int bench_json_element(struct bench_json *json)
{
    return next_member(json, ']');
}

int bench_json_key(struct bench_json *json, char *key, size_t key_bytes)
{
    int more = next_member(json, '}');

    if (more <= 0)
        return more;
    if (!bench_json_string(json, key, key_bytes) || !take(json, ':', "expected ':'"))
        return -1;
    return 1;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Bytes of the JSON number at the position, 0 if there is none. */
static size_t number_bytes(struct bench_json *json, bool *integer)
{
    const char *p = json->at, *end = json->end;
    const char *digits;

    *integer = true;
    if (p < end && *p == '-') {
        *integer = false;
        p++;
    }
    digits = p;
    while (p < end && is_digit(*p))
        p++;
    if (p == digits || (*digits == '0' && p - digits > 1))
        return 0;
    if (p < end && *p == '.') {
        *integer = false;
        digits = ++p;
        while (p < end && is_digit(*p))
            p++;
        if (p == digits)
            return 0;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        *integer = false;
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        digits = p;
        while (p < end && is_digit(*p))
            p++;
        if (p == digits)
            return 0;
    }
    return (size_t)(p - json->at);
}

bool bench_json_uint(struct bench_json *json, uint64_t max, uint64_t *value)
{
    bool integer;
    size_t bytes = look(json) ? number_bytes(json, &integer) : 0;
    uint64_t sum = 0;

    if (!bytes || !integer)
        return bench_json_fail(json, "expected a whole number, not negative");
    for (size_t i = 0; i < bytes; i++) {
        uint64_t digit = (uint64_t)(json->at[i] - '0');
        if (digit > max || sum > (max - digit) / 10)
            return bench_json_fail(json, "a number is too large");
        sum = sum * 10 + digit;
    }
    json->at += bytes;
    *value = sum;
    return true;
}

bool bench_json_double(struct bench_json *json, double *value)
{
    char copy[64];
    bool integer;
    size_t bytes = look(json) ? number_bytes(json, &integer) : 0;

    if (!bytes || bytes >= sizeof(copy))
        return bench_json_fail(json, "expected a number");
    memcpy(copy, json->at, bytes);
    copy[bytes] = 0;
    *value = strtod(copy, NULL);
    json->at += bytes;
    return true;
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Behind a backslash. Return: the character, or -1. */
static int unescape(struct bench_json *json)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name;
    int code = 0;

    if (json->at >= json->end || !*json->at)
        return -1;
    name = strchr(names, *json->at);
    if (name) {
        json->at++;
        return values[name - names];
    }
    if (*json->at++ != 'u' || json->end - json->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*json->at++);
        if (digit < 0)
            return -1;
        code = code * 16 + digit;
    }
    return code > 0 && code < 0x80 ? code : -1;
}

bool bench_json_string(struct bench_json *json, char *text, size_t text_bytes)
{
    size_t length = 0;

    if (!take(json, '"', "expected a string"))
        return false;
    while (json->at < json->end && *json->at != '"') {
        int c = (unsigned char)*json->at++;

        if (c < 0x20)
            return bench_json_fail(json, "a control character in a string");
        if (c == '\\')
            c = unescape(json);
        if (c < 0)
            return bench_json_fail(json, "an escape that is not understood");
        if (length + 1 >= text_bytes)
            return bench_json_fail(json, "a string is too long");
        text[length++] = (char)c;
    }
    text[length] = 0;
    return take(json, '"', "a string does not end");
}

static bool take_word(struct bench_json *json, const char *word)
{
    size_t bytes = strlen(word);

    if (!look(json) || (size_t)(json->end - json->at) < bytes || memcmp(json->at, word, bytes) != 0)
        return false;
    json->at += bytes;
    return true;
}

bool bench_json_bool(struct bench_json *json, bool *value)
{
    *value = take_word(json, "true");
    return *value || take_word(json, "false") || bench_json_fail(json, "expected true or false");
}

/* The longest string worth skipping; the values themselves are not kept. */
static bool skip_string(struct bench_json *json)
{
    char text[4096];
    return bench_json_string(json, text, sizeof(text));
}

static bool skip_at(struct bench_json *json, uint32_t depth)
{
    char first = look(json);
    char key[256];
    double number;
    int more;

    if (depth > BENCH_JSON_DEPTH_MAX)
        return bench_json_fail(json, "nested too deeply");
    if (first == '"')
        return skip_string(json);
    if (first == '{') {
        bench_json_object(json);
        while ((more = bench_json_key(json, key, sizeof(key))) > 0)
            if (!skip_at(json, depth + 1))
                return false;
        return more == 0;
    }
    if (first == '[') {
        bench_json_array(json);
        while ((more = bench_json_element(json)) > 0)
            if (!skip_at(json, depth + 1))
                return false;
        return more == 0;
    }
    if (take_word(json, "true") || take_word(json, "false") || take_word(json, "null"))
        return true;
    return bench_json_double(json, &number);
}

bool bench_json_skip(struct bench_json *json)
{
    return skip_at(json, 1);
}

bool bench_json_end(struct bench_json *json)
{
    (void)look(json);
    if (json->at < json->end)
        return bench_json_fail(json, "something follows the value");
    return !json->error;
}
