/* stage_rig.c - the data plane of a test, and its first client. */
#include "tests/support/rigs/stage_rig.h"

struct stage stage;
struct stage_client client;
