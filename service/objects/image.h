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
 * @client: the plan's owner, which pays
 * @fd:     receives the memfd, which stays the image's; it can be mapped for reading only
 *
 * Return: 0; -ATTND_E_NO_MEMORY: field daemon_memory, its session's share; field memory, the
 * daemon has no descriptor left for it; -ATTND_E_SYSTEM.
 */
int attnd_image_open(struct attnd_client *client, struct attnd_plan_object *object, int *fd,
                     uint64_t *size_bytes, struct attnd_fault *fault);

/**
 * attnd_image_write() - the image becomes what @object is now, after each operation that may have
 * changed it: everything after a set, or an advance that planned again, with the tables of its
 * variant under the handles of @client; after another advance the lengths of its generation, and
 * page ids that these reach and the image does not have; nothing if nothing is new
 * @code: of the operation. If the plan is empty, or a thread plans it, the image says it.
 */
void attnd_image_write(const struct attnd_client *client, const struct attnd_plan_object *object,
                       int code);

#endif
