/*
 * places.h - the memory that a run names: does it exist, is it large enough, may it be written?
 */
#ifndef ATTND_SERVICE_OBJECTS_PLACES_H
#define ATTND_SERVICE_OBJECTS_PLACES_H

#include "service/objects/planobj.h"

/* An operation names at most this many places: q, o, lse; k, v; or those of a merge. */
#define ATTND_RUN_PLACES 6u

/** attnd_places_take() - the memory that the handles of @sqe name, referenced from now on; NULL
 * where a handle names none. */
void attnd_places_take(const struct attnd_client *client, const struct attnd_sqe *sqe,
                       struct attnd_memory *memories[ATTND_RUN_PLACES]);
void attnd_places_release(struct attnd_service *service,
                          struct attnd_memory *const memories[ATTND_RUN_PLACES]);

/** attnd_places_take_merge() - the same of a merge, which names them in its arena.
 * @memories: enum attnd_merge_at */
void attnd_places_take_merge(const struct attnd_client *client,
                             const struct attnd_merge_view *merge,
                             struct attnd_memory *memories[ATTND_RUN_PLACES]);

/** attnd_places_merge() - the places of a merge, as far as o and lse of @plan as it is filled. An
 * output may lie exactly where an input of its kind lies. @memories: enum attnd_merge_at.
 * Return: 0, or the fault's code. */
int attnd_places_merge(const struct attnd_plan_object *plan, const struct attnd_merge_view *merge,
                       struct attnd_memory *const *memories, struct attnd_run *run,
                       struct attnd_fault *fault);

/** attnd_places_append() - the places of an append to @plan as it is filled, into k and v of @run.
 * @memories: k, v. Return: 0, or the fault's code. */
int attnd_places_append(const struct attnd_plan_object *plan, const struct attnd_sqe_append *sqe,
                        struct attnd_memory *const *memories, struct attnd_run *run,
                        struct attnd_fault *fault);

/** attnd_places_attend() - those of a run of @plan as it is filled, into q, o and lse of @run.
 * @service:  whose pools o and lse may not lie in; NULL: any
 * @memories: q, o, lse; NULL where @sqe names none or one that does not exist
 * Return: 0, or the fault's code. */
int attnd_places_attend(const struct attnd_service *service, const struct attnd_plan_object *plan,
                        const struct attnd_sqe_run *sqe, struct attnd_memory *const *memories,
                        struct attnd_run *run, struct attnd_fault *fault);

#endif
