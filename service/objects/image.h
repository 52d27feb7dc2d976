/*
 * image.h - the image of a plan: the plan as an engine's kernels read it, in a memfd that only the
 * daemon can write (schemas/engine.h).
 *
 * An image is made when it is first asked for, follows its plan from then on, and goes with it. The
 * calls that write it do nothing for a plan that has none. Threads: the loop's.
 */
#ifndef ATTND_SERVICE_OBJECTS_IMAGE_H
#define ATTND_SERVICE_OBJECTS_IMAGE_H

#include "service/objects/planobj.h"

/**
 * attnd_image_open() - the image of @object, made and written if it has none yet
 * @client: whose plan it is, and who pays
 * @fd:     receives the memfd, which stays the image's; it can be mapped for reading only
 *
 * Return: 0; -ATTND_E_NO_MEMORY: field daemon_memory, its session's share; field memory, the
 * daemon has no descriptor left for it; -ATTND_E_SYSTEM.
 */
int attnd_image_open(struct attnd_client *client, struct attnd_plan_object *object, int *fd,
                     uint64_t *size_bytes, struct attnd_fault *fault);

/** attnd_image_write_set() - after a set, or an advance that planned again, as planobj has it now:
 * everything, with the tables of its variant under the handles of @client. If the plan is empty the
 * image says why: @code, the set's. */
void attnd_image_write_set(const struct attnd_client *client,
                           const struct attnd_plan_object *object, int code);

/** attnd_image_write_advance() - after an advance of a filled plan: the lengths of its generation,
 * and the page ids that these reach and the image does not have. */
void attnd_image_write_advance(const struct attnd_plan_object *object);

#endif
