/*
 * range.h - numbers of calls that have a least and a largest.
 */
#ifndef ATTND_SERVICE_BASE_RANGE_H
#define ATTND_SERVICE_BASE_RANGE_H

#include "schemas/errors.h"

/** attnd_in_range() - is @value 1..@limit? Return: 0; -ATTND_E_RANGE, with the nearest that is. */
static inline int attnd_in_range(uint32_t value, uint32_t limit, enum attnd_field field,
                                 struct attnd_fault *fault)
{
    if (value >= 1 && value <= limit)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_RANGE, field, 0, value, value ? limit : 1);
}

#endif
