/* json.h - enough of RFC 8259 to say whether a text is JSON, and to look into it. */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_JSON_H
#define ATTND_TESTS_SUPPORT_HARNESS_JSON_H

/** json_valid() - 1 if @text is one value and white space, its strings UTF-8. */
int json_valid(const char *text);

/** json_member() - where the value of @key begins in the object at @value, NULL if there is none.
 */
const char *json_member(const char *value, const char *key);
/** json_element() - where element @index of the array at @value begins, NULL if it is shorter. */
const char *json_element(const char *value, unsigned index);
/** json_number() - of the member @key of the object at @value; NAN if there is none. */
double json_number(const char *value, const char *key);
/** json_is() - 1 if the member @key is the string @text (which needs no escapes). */
int json_is(const char *value, const char *key, const char *text);

#endif
