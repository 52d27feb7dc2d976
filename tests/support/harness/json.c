/* json.c - what tests ask of a document, each in one line. */
#include "tests/support/harness/json.h"

#include "tests/support/harness/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const json_t *json_document(const char *text)
{
    static json_t *document;
    json_error_t error;

    json_decref(document);
    document = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!document)
        fprintf(stderr, "line %d, column %d: %s\n%s\n", error.line, error.column, error.text, text);
    CHECK(document != NULL);
    return document;
}

const json_t *json_find(const json_t *list, const char *key, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is(json_array_get(list, i), key, text))
            return json_array_get(list, i);
    return NULL;
}

int json_is(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value && strcmp(value, text) == 0;
}

const char *json_text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));

    CHECK(value != NULL);
    return value;
}

double json_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}
