/*
 * json.h - our values as jansson's.
 *
 * Programs that print JSON make a json_t and print it once; jansson escapes, indents and reads. It
 * refuses what JSON cannot say, so texts and numbers that may be such pass through here.
 */
#ifndef ATTND_SERVICE_CTL_JSON_H
#define ATTND_SERVICE_CTL_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdint.h>
#include <stdio.h>

/** attnd_json_text() - a string. Bytes beyond ASCII become '?' if @text is not UTF-8. */
json_t *attnd_json_text(const char *text);

/** attnd_json_real() - a number; null if it is not finite. */
json_t *attnd_json_real(double value);

/** attnd_json_count() - a whole number. Above INT64_MAX, which JSON's readers do not keep exactly
 * either, it is the nearest real. */
json_t *attnd_json_count(uint64_t value);

/**
 * attnd_json_message() - any message as one object, every field that is set, by the names of the
 * schema
 * Return: the caller's; NULL without memory.
 */
json_t *attnd_json_message(const ProtobufCMessage *message);

/**
 * attnd_json_print() - @value and the end of the line
 * @value: taken, also on failure; NULL is a failure
 * @flags: jansson's, as JSON_INDENT(2)
 * Return: 0; -ATTND_E_SYSTEM.
 */
int attnd_json_print(FILE *out, json_t *value, size_t flags);

#endif
