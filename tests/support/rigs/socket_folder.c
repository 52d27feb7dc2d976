/* socket_folder.c - see socket_folder.h. */
#include "tests/support/rigs/socket_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char socket_folder[32], socket_path[64];

int socket_folder_make(void **state)
{
    (void)state;
    strcpy(socket_folder, "/tmp/attnd-test-XXXXXX");
    if (!mkdtemp(socket_folder))
        return -1;
    snprintf(socket_path, sizeof(socket_path), "%s/sock", socket_folder);
    return 0;
}

int socket_folder_remove(void **state)
{
    (void)state;
    (void)unlink(socket_path);
    return rmdir(socket_folder);
}
