/* A SPANK plugin with pyxis' options that starts no container: job scripts are parsed as on a cluster with pyxis,
 * and each task finds the values it was given as PYXIS_STUB_CONTAINER_IMAGE and so on.
 * Options: https://github.com/NVIDIA/pyxis (README, "Usage"). */
#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(pyxis_stub, 1);

static int keep(int index, const char *value, int remote);
#define OPTION(index, name, argument) {name, argument, "taken by the stub", (argument) != NULL, index, keep}
static struct spank_option options[] = {
    OPTION(0, "container-image", "IMAGE"),
    OPTION(1, "container-mounts", "SRC:DST[:FLAGS],..."),
    OPTION(2, "container-workdir", "PATH"),
    OPTION(3, "container-name", "NAME"),
    OPTION(4, "container-mount-home", NULL),
    OPTION(5, "no-container-mount-home", NULL),
    OPTION(6, "container-remap-root", NULL),
    OPTION(7, "no-container-remap-root", NULL),
    OPTION(8, "container-writable", NULL),
    OPTION(9, "container-readonly", NULL),
    OPTION(10, "container-env", "NAME,..."),
    SPANK_OPTIONS_TABLE_END,
};
static const char *values[sizeof options / sizeof *options];

static int keep(int index, const char *value, int remote) {
    (void)remote;
    values[index] = value && *value ? strdup(value) : "1"; /* remotely, no value is an empty one */
    return 0;
}

int slurm_spank_init(spank_t spank, int argc, char **argv) {
    (void)argc, (void)argv;
    if (spank_context() == S_CTX_SLURMD) return 0;
    for (struct spank_option *option = options; option->name; option++)
        if (spank_option_register(spank, option) != ESPANK_SUCCESS) return -1;
    return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv) {
    (void)argc, (void)argv;
    for (int i = 0; options[i].name; i++) {
        if (!values[i]) continue;
        char variable[64] = "PYXIS_STUB_", *end = variable + strlen(variable);
        for (const char *c = options[i].name; *c; c++) *end++ = *c == '-' ? '_' : (char)(*c - 32);
        *end = 0;
        spank_setenv(spank, variable, values[i], 1);
    }
    return 0;
}
