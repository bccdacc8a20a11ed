"""A table as lines of text, for people or for Markdown."""


def print_table(header, rows, markdown):
    """Prints `rows`, lists of strings as long as `header`, in aligned columns or as Markdown."""
    if markdown:
        for row in [header, ["---"] * len(header), *rows]:
            print("| " + " | ".join(row) + " |")
        return
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
