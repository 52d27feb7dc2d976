/* json.h - JSON that a program printed, read by jansson. */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_JSON_H
#define ATTND_TESTS_SUPPORT_HARNESS_JSON_H

#include <jansson.h>

/** json_document() - @text is one value and white space, or the test fails.
 * Return: borrowed, until the next call. */
const json_t *json_document(const char *text);

/** json_find() - the first object of the list @list whose member @key is @text; NULL if none is. */
const json_t *json_find(const json_t *list, const char *key, const char *text);

/** json_is() - 1 if the member @key of @object is the string @text. */
int json_is(const json_t *object, const char *key, const char *text);

/** json_text() - the member @key of @object, which must be a string. */
const char *json_text(const json_t *object, const char *key);

/** json_number() - of the member @key of @object; NAN if there is none. */
double json_number(const json_t *object, const char *key);

#endif
