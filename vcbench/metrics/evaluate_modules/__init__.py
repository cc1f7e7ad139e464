"""Text metrics as modules of Hugging Face's `evaluate`, one file each: they load by path, without the hub.

Each gives the value of every answer and their mean. A file imports one module a line and nothing of vcbench at its top:
`evaluate.load` copies it elsewhere, and its scanner misreads `import a, b`.
"""
