"""The methods, one file each: NEEDS (layers), Params, `retrieve` and `program`. A method never imports torch."""
