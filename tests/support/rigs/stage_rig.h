/*
 * stage_rig.h - the data plane of a test, and its first client.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_STAGE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_STAGE_RIG_H

#include "tests/support/trial/stage.h"

extern struct stage stage;
extern struct stage_client client;

#endif
