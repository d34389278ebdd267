# Tab completion of exo for bash. Made by "exo completions bash".
_exo_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" kind value text
    local word="${line##*[[:space:]]}"
    # bash takes "=", ":" and "@" for ends of words and replaces only what follows the last of them.
    local cut="${word%"${word##*[=:@]}"}"
    COMPREPLY=()
    compopt +o default 2>/dev/null
    while IFS=$'\t' read -r kind value text; do
        case "$kind" in
            plain)
                case "$value" in
                    *=) compopt -o nospace 2>/dev/null ;;
                esac
                COMPREPLY+=("${value#"$cut"}")
                ;;
            file) compopt -o default 2>/dev/null ;;
            dir) compopt -o dirnames 2>/dev/null ;;
        esac
    done < <(_EXO_COMPLETE=line "${1/#\~/$HOME}" "$line" 2>/dev/null)
}
complete -o default -F _exo_complete exo exocli
