/*
 * variant.h - what only the daemon knows of a batch's variant: does the worker execute it, and does
 * the memory of its tables exist?
 */
#ifndef ATTND_SERVICE_OBJECTS_VARIANT_H
#define ATTND_SERVICE_OBJECTS_VARIANT_H

#include "service/objects/planobj.h"

/**
 * attnd_variant_resolve() - the tables of an admitted batch, as the worker knows them
 * @batch:    its tables name memory of @client; afterwards indices of the worker's table
 * @memories: receives the memory of each table, referenced, or NULL; released by the caller
 * whatever is returned
 *
 * Return: 0; -ATTND_E_UNSUPPORTED naming the first option that the worker lacks, with index
 * ATTND_F_BACKEND, or the kernel that it was built without (ATTND_F_KERNEL); -ATTND_E_UNKNOWN or
 * -ATTND_E_RANGE naming the table.
 */
int attnd_variant_resolve(const struct attnd_client *client, const struct attnd_plan_object *plan,
                          struct attnd_batch_view *batch,
                          struct attnd_memory *memories[ATTND_TABLES], struct attnd_fault *fault);

#endif
