/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for bash, from the same tables as --help. */
#include "client/cli/cli.h"

#include <stdio.h>
#include <string.h>

static void print_flags(const struct base_options *options)
{
    for (size_t i = 0; options && i < options->count; i++)
        printf("--%s ", options->table[i].name);
    printf("--help --version");
}

int cli_completion(int argc, char **argv)
{
    if (argc > 1) {
        bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
        fputs("Usage: millrace completion > /etc/bash_completion.d/millrace\n", help ? stdout : stderr);
        return help ? CLI_EXIT_OK : CLI_EXIT_USAGE;
    }
    puts("# bash completion for millrace\n"
         "_millrace() {\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} words=\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "        words='--help --version");
    for (const struct cli_command *command = cli_commands; command->name; command++)
        printf("            %s\n", command->name);
    puts("        '\n    else\n        case ${COMP_WORDS[1]} in");
    for (const struct cli_command *command = cli_commands; command->name; command++) {
        printf("        %s) words='", command->name);
        for (const char *const *verb = command->verbs; verb && *verb; verb++)
            printf("%s ", *verb);
        print_flags(command->options);
        puts("' ;;");
    }
    puts("        esac\n    fi\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "    [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
         "}\n"
         "complete -F _millrace millrace");
    return CLI_EXIT_OK;
}
