#!/bin/sh
# A consumer in any language: the payload on stdin, the exit code decides.
#
#   yirangmq publish --queue invoices '{"number": 17}'
#   yirangmq consume --queue invoices --raw --exec examples/legacy.sh
#
# Files each payload under its message id. Redelivered messages do no harm: they write the same file again.

folder=${INVOICES:-./invoices}
file=$folder/$YIRANGMQ_MESSAGE_ID.json

mkdir -p "$folder" || exit 75              # 75: not now, try again later
cat > "$file.part" || exit 75

if ! grep -q '"number"' "$file.part"; then
    echo "an invoice without a number" >&2 # the end of stderr stands with the dead letter
    rm -f "$file.part"
    exit 65                                # 65: this will never work
fi

mv "$file.part" "$file"                    # 0: done; any other code: failed, again as the policy says
