/*
 * change.h - the steps of what changes a plan.
 */
#ifndef ATTND_SERVICE_SCHED_CHANGE_H
#define ATTND_SERVICE_SCHED_CHANGE_H

#include "service/sched/op.h"

/** attnd_change_set(), _advance() - the step of a set or an advance of a plan. */
enum attnd_step attnd_change_set(struct attnd_sched_op *op);
enum attnd_step attnd_change_advance(struct attnd_sched_op *op);

#endif
