/* main_attnd.c - the control daemon. */
#include "service/daemon/run.h"

int main(int argc, char **argv)
{
    struct attnd_options options;

    attnd_options_parse(argc, argv, &options);
    return (int)attnd_service_run(&options);
}
