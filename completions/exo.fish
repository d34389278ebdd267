# Tab completion of exo for fish. Made by "exo completions fish".
function __exo_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    for line in (_EXO_COMPLETE=words $typed[1] $typed[2..-1] "$current" 2>/dev/null)
        set -l parts (string split \t -- $line)
        switch $parts[1]
            case plain
                printf '%s\t%s\n' $parts[2] "$parts[3]"
            case file dir
                __fish_complete_path "$current"
        end
    end
end
complete -c exo -c exocli -f -a '(__exo_complete)'
