/* main_attnd.c - the control daemon. */
#include "service/daemon/config.h"
#include "service/daemon/run.h"

int main(int argc, char **argv)
{
    struct attnd_options options;

    attnd_options_parse(argc, argv, &options);
    if (options.check_config) {
        attnd_config_print(stdout, &options);
        return fflush(stdout) == 0 ? ATTND_EXIT_OK : ATTND_EXIT_INTERNAL;
    }
    return (int)attnd_service_run(&options, argc, argv);
}
